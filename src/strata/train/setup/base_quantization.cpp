// Settings beside what config.json says. Never: layers, weights.
#include "strata/train/setup/base_quantization.h"

#include <algorithm>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_form.h"
#include "strata/hf/mxfp4.h"

namespace strata::train {
namespace {

const char* asked_for(const config::QuantizationConfig& config) {
  return config.load_in_8bit ? "load_in_8bit" : "load_in_4bit";
}

void check_width(const config::QuantizationConfig& config,
                 const models::QuantizationOptions& stored) {
  const bool in_8bit = stored.quantization.format.kind == ops::quant::Kind::kInt8;
  if (!(in_8bit ? config.load_in_4bit : config.load_in_8bit)) return;
  throw ConfigError(
      "{}: found over a checkpoint whose quantization_config says {}, expected its width or plain "
      "weights; remove the flag, or name the model that was quantised",
      asked_for(config), in_8bit ? "load_in_8bit" : "load_in_4bit");
}

void refuse_packed(const config::QuantizationConfig& config, const Json& model_config) {
  if (!(config.load_in_4bit || config.load_in_8bit) || !hf::announces_mxfp4(model_config)) return;
  throw ConfigError(
      "{}: found over a checkpoint whose quantization_config says mxfp4, expected plain weights, "
      "as in transformers; remove the flag (frozen experts stay in MXFP4)",
      asked_for(config));
}

}  // namespace

std::optional<models::QuantizationOptions> quantization_of(const config::QuantizationConfig& config,
                                                           const Json& model_config) {
  refuse_packed(config, model_config);
  if (hf::announces_ints(model_config)) (void)hf::read_int_form(model_config);
  auto stored = models::stored_quantization(model_config);
  if (stored) check_width(config, *stored);
  if (stored || !(config.load_in_4bit || config.load_in_8bit)) return stored;
  models::QuantizationOptions options;
  // As in the reference an empty list is not the default: then the output layer becomes codes too.
  const std::vector<std::string>& skipped = config.llm_int8_skip_modules;
  if (skipped == std::vector<std::string>{"none"}) {
    options.skip_modules.emplace();
  } else if (!skipped.empty()) {
    options.skip_modules = skipped;
  }
  if (config.load_in_8bit) {
    options.quantization.format.kind = ops::quant::Kind::kInt8;
    options.quantization.threshold = config.llm_int8_threshold;
    return options;
  }
  options.quantization.format = {
      .kind = ops::quant::parse_kind(config.bnb_4bit_quant_type, "bnb_4bit_quant_type"),
      .block = config.bnb_4bit_blocksize,
      .nested = config.bnb_4bit_use_double_quant};
  options.quantization.compute = models::compute_type_of(config.bnb_4bit_compute_dtype);
  return options;
}

bool has_bitsandbytes_codes(models::Model& model) {
  return std::ranges::any_of(model.parameters(), [](const nn::Parameter* p) {
    return p->quantization() && ops::quant::is_of_bitsandbytes(p->quantization()->format);
  });
}

std::vector<std::string> quantization_warnings(const config::QuantizationConfig& config,
                                               const Json& model_config) {
  std::vector<std::string> warnings;
  if (config.mxfp4_dequantize && !hf::announces_mxfp4(model_config)) {
    warnings.push_back("mxfp4_dequantize: has no effect; the checkpoint holds nothing in MXFP4");
  }
  if (config.fp8_dequantize && !hf::announces_fp8(model_config)) {
    warnings.push_back("fp8_dequantize: has no effect; the checkpoint holds nothing in fp8");
  }
  if (config.int_dequantize && !hf::announces_ints(model_config)) {
    warnings.push_back("int_dequantize: has no effect; the checkpoint holds nothing in integers");
  }
  const bool asks_for_codes = config.load_in_4bit || config.load_in_8bit;
  if (asks_for_codes && models::stored_quantization(model_config)) {
    warnings.push_back(fmt::format(
        "{}: has no effect, nor have the flags that go with it; the checkpoint holds codes and its "
        "quantization_config decides",
        asked_for(config)));
  }
  return warnings;
}

}  // namespace strata::train
