#include "strata/config/checks/adapter_checks.h"

#include <string_view>

#include "strata/base/error.h"
#include "strata/config/checks/rules.h"

namespace strata::config {
namespace {

// Every setting of an adapter and the methods that have it.
struct AdapterSetting {
  const char* name;
  std::string_view methods;
};
constexpr AdapterSetting kSettings[] = {
    {"peft_type", "LORA IA3 VERA PROMPT_TUNING PREFIX_TUNING"},
    {"lora_r", "LORA VERA"},
    {"lora_alpha", "LORA"},
    {"lora_dropout", "LORA VERA"},
    {"lora_target_modules", "LORA IA3 VERA"},
    {"lora_target_parameters", "LORA"},
    {"lora_modules_to_save", "LORA IA3 VERA"},
    {"feedforward_modules", "IA3"},
    {"trainable_token_indices", "LORA"},
    {"ensure_weight_tying", "LORA"},
    {"use_rslora", "LORA"},
    {"use_dora", "LORA"},
    {"init_lora_weights", "LORA"},
    {"rank_pattern", "LORA"},
    {"alpha_pattern", "LORA"},
    {"exclude_modules", "LORA IA3"},
    {"layers_to_transform", "LORA VERA"},
    {"layers_pattern", "LORA VERA"},
    {"bias", "LORA VERA"},
    {"lora_bias", "LORA"},
    {"loftq_bits", "LORA"},
    {"loftq_iter", "LORA"},
    {"d_initial", "VERA"},
    {"projection_prng_key", "VERA"},
    {"save_projection", "VERA"},
    {"init_weights", "VERA PREFIX_TUNING"},
    {"num_virtual_tokens", "PROMPT_TUNING PREFIX_TUNING"},
    {"prompt_tuning_init", "PROMPT_TUNING"},
    {"prompt_tuning_init_text", "PROMPT_TUNING"},
    {"prefix_projection", "PREFIX_TUNING"},
    {"encoder_hidden_size", "PREFIX_TUNING"},
};

class AdapterRules : Rules {
 public:
  using Rules::Rules;

  void check() {
    check_switch();
    if (config_.lora.use_peft && config_.model.adapter_name_or_path.empty()) check_method();
    check_quantization();
  }

 private:
  // With an adapter that is continued, or with none, all of them do nothing.
  void check_switch() {
    const bool continues = !config_.model.adapter_name_or_path.empty();
    const bool is_switched_off = given("use_peft") || given("use_peft_lora");
    for (const auto& [name, methods] : kSettings) {
      if (config_.lora.use_peft) {
        if (continues) warn_without_effect(name, "the adapter that is continued decides");
      } else if (is_switched_off) {
        warn_without_effect(name, "LoRA is off");
      } else if (const Given* found = given(name)) {
        throw ConfigError(
            "{}: found without use_peft, expected LoRA to be on; add --use_peft or "
            "remove it",
            named_source(*found));
      }
    }
  }

  // Settings that only some methods have, of an adapter that is new.
  void check_method() {
    using enum PeftType;
    const PeftType type = config_.lora.peft_type;
    for (const auto& [name, methods] : kSettings) {
      if (methods.find(name_of(type)) == methods.npos) {
        warn_without_effect(name, fmt::format("peft_type is {}", type));
      }
    }
    if (type == kLora && config_.lora.init_lora_weights != "loftq") {
      for (const char* name : {"loftq_bits", "loftq_iter"}) {
        warn_without_effect(name, "init_lora_weights is not loftq");
      }
    }
    if (type == kPrefixTuning && !config_.lora.prefix_projection) {
      warn_without_effect("encoder_hidden_size", "prefix_projection is off");
    }
    if (type == kLora && config_.lora.bias == "vera_only") {
      throw ConfigError("{}: found vera_only with peft_type LORA, expected none, all or lora_only",
                        source("bias"));
    }
    if (type == kLora && config_.lora.init_lora_weights == "eva") {
      throw ConfigError(
          "{}: found eva, whose initial values come from activations of the data and which is not "
          "supported, expected true, false, gaussian, orthogonal, pissa, pissa_niter_N, olora or "
          "loftq; choose one of them",
          source("init_lora_weights"));
    }
    check_virtual_tokens(type);
  }

  void check_virtual_tokens(PeftType type) {
    if (is_tuning_of_tokens(type) && config_.lora.num_virtual_tokens == 0) {
      throw ConfigError(
          "num_virtual_tokens: found nothing with peft_type {}, expected the number of rows to "
          "train; pass --num_virtual_tokens 20 or another number",
          type);
    }
    if (type != PeftType::kPromptTuning) return;
    if (config_.train.label_smoothing_factor > 0) {
      throw ConfigError(
          "{}: found {} with peft_type PROMPT_TUNING, expected 0 because the reference's smoother "
          "cannot tell a prompt's rows from tokens; leave it out",
          source("label_smoothing_factor"), config_.train.label_smoothing_factor);
    }
    const bool from_text = config_.lora.prompt_tuning_init == "TEXT";
    if (from_text == !config_.lora.prompt_tuning_init_text.empty()) return;
    throw ConfigError(
        "prompt_tuning_init_text: found {} with prompt_tuning_init {}, expected a text only with "
        "TEXT; {}",
        from_text ? "nothing" : "a text", config_.lora.prompt_tuning_init,
        from_text ? "pass one" : "leave it out or pass --prompt_tuning_init TEXT");
  }

  void check_quantization() {
    const QuantizationConfig& quantization = config_.quantization;
    if (quantization.load_in_4bit && quantization.load_in_8bit) {
      throw ConfigError("{}: found with {}, expected one of them; remove one",
                        source("load_in_4bit"), source("load_in_8bit"));
    }
    const bool is_on = quantization.load_in_4bit || quantization.load_in_8bit;
    const std::string which = quantization.load_in_4bit ? "load_in_4bit" : "load_in_8bit";
    for (const char* name : {"bnb_4bit_quant_type", "bnb_4bit_blocksize",
                             "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype"}) {
      if (!quantization.load_in_4bit) warn_without_effect(name, "load_in_4bit is off");
    }
    if (!quantization.load_in_8bit)
      warn_without_effect("llm_int8_threshold", "load_in_8bit is off");
    if (!is_on) {
      return warn_without_effect("llm_int8_skip_modules", "load_in_4bit and load_in_8bit are off");
    }
    const int64_t block = quantization.bnb_4bit_blocksize;
    if ((block & (block - 1)) != 0) {
      throw ConfigError("{}: found {}, expected a power of two from 32 to 4096; choose 64",
                        source("bnb_4bit_blocksize"), block);
    }
    if (!config_.lora.use_peft) {
      throw ConfigError(
          "{}: found without an adapter, expected one because quantised weights cannot be trained; "
          "add --use_peft",
          source(which));
    }
    if (config_.model.model_name_or_path.empty()) {
      throw ConfigError(
          "{}: found without model_name_or_path, expected a checkpoint to quantise; "
          "name its folder",
          source(which));
    }
  }
};

}  // namespace

void check_adapter(const RunConfig& config, const Merge& merge,
                   std::vector<std::string>& warnings) {
  AdapterRules(config, merge, warnings).check();
}

}  // namespace strata::config
