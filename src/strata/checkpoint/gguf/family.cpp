#include "strata/checkpoint/gguf/family.h"

#include <algorithm>
#include <cmath>

#include "strata/base/error.h"
#include "strata/checkpoint/gguf/rotary_keys.h"
#include "strata/models/config_reader.h"
#include "strata/models/gpt2/config.h"
#include "strata/models/llama/config.h"
#include "strata/models/moe/config.h"
#include "strata/models/reward_head.h"

namespace strata::checkpoint {
namespace {

using models::LlamaConfig;
using models::MixtureConfig;

using Names = std::map<std::string, std::string>;

void put(GgufFamily& family, const std::string& key, hf::GgufValue value) {
  family.keys.emplace_back(family.architecture + "." + key, std::move(value));
}

void put_size(GgufFamily& family, const std::string& key, int64_t value) {
  put(family, key, static_cast<uint32_t>(value));
}

void put_number(GgufFamily& family, const std::string& key, double value) {
  put(family, key, static_cast<float>(value));
}

[[noreturn]] void refuse(const GgufFamily& family, const std::string& found,
                         const std::string& expected) {
  throw ConfigError(
      "config.json: found {}, expected {}, as llama.cpp computes {} in no other way; "
      "use another model",
      found, expected, family.architecture);
}

const Names kLayerNames = {{"self_attn.q_proj", "attn_q"},
                           {"self_attn.k_proj", "attn_k"},
                           {"self_attn.v_proj", "attn_v"},
                           {"self_attn.o_proj", "attn_output"},
                           {"self_attn.q_norm", "attn_q_norm"},
                           {"self_attn.k_norm", "attn_k_norm"},
                           {"self_attn.qkv_proj", "attn_qkv"},
                           {"mlp.gate_proj", "ffn_gate"},
                           {"mlp.up_proj", "ffn_up"},
                           {"mlp.down_proj", "ffn_down"},
                           {"mlp.gate_up_proj", "ffn_up"},
                           {"input_layernorm", "attn_norm"},
                           {"post_attention_layernorm", "ffn_norm"}};

const Names kGpt2Names = {{"ln_1", "attn_norm"},          {"attn.c_attn", "attn_qkv"},
                          {"attn.c_proj", "attn_output"}, {"ln_2", "ffn_norm"},
                          {"mlp.c_fc", "ffn_up"},         {"mlp.c_proj", "ffn_down"}};

// What llama.cpp computes without a window.
void note_windows(const LlamaConfig& config, GgufFamily& family) {
  const auto widest = std::ranges::max_element(config.windows);
  if (widest == config.windows.end() || *widest == 0) return;
  family.notes.push_back(fmt::format(
      "llama.cpp has no sliding window for {}: a text of more than {} tokens is attended "
      "as a whole, and differs from the model's",
      family.architecture, *widest));
}

void describe_common(const LlamaConfig& c, GgufFamily& family) {
  family.layer_names = kLayerNames;
  family.other_names = {
      {c.embedding, "token_embd"}, {c.final_norm, "output_norm"}, {"lm_head", "output"}};
  family.query_heads = c.num_attention_heads;
  family.key_heads = c.num_key_value_heads;
  put_size(family, "block_count", c.num_hidden_layers);
  // Files of a model that yarn stretches may say the length before.
  const bool is_yarn = c.rope.kind == nn::RopeKind::kYarn;
  put_size(family, "context_length", is_yarn ? c.rope.reach() : c.max_position_embeddings);
  put_size(family, "embedding_length", c.hidden_size);
  put_size(family, "feed_forward_length", c.intermediate_size);
  put_size(family, "attention.head_count", c.num_attention_heads);
  put_size(family, "attention.head_count_kv", c.num_key_value_heads);
  put_size(family, "attention.key_length", c.head_dim);
  put_size(family, "attention.value_length", c.head_dim);
  put_number(family, "attention.layer_norm_rms_epsilon", c.rms_norm_eps);
  put_size(family, "vocab_size", c.vocab_size);
  describe_rotation(c.rope, family);
}

void require_whole_heads(const LlamaConfig& c, const GgufFamily& family) {
  if (c.num_attention_heads * c.head_dim == c.hidden_size) return;
  refuse(family, fmt::format("head_dim = {} of {} heads", c.head_dim, c.num_attention_heads),
         fmt::format("hidden_size = {} of all heads", c.hidden_size));
}

void require_no_output_bias(const LlamaConfig& c, const GgufFamily& family) {
  if (c.output_bias) refuse(family, "attention_bias = true", "false");
}

// Llama and what differs from it in nothing that llama.cpp computes.
template <LlamaConfig (*parse)(const Json&)>
void describe_llama(const Json& json, GgufFamily& family) {
  const LlamaConfig c = parse(json);
  describe_common(c, family);
  family.turns_pairs = true;
  note_windows(c, family);
}

void describe_qwen2(const Json& json, GgufFamily& family) {
  const LlamaConfig c = models::parse_qwen2_config(json);
  describe_common(c, family);
  require_whole_heads(c, family);
  note_windows(c, family);
}

void describe_qwen3(const Json& json, GgufFamily& family) {
  const LlamaConfig c = models::parse_qwen3_config(json);
  describe_common(c, family);
  require_no_output_bias(c, family);
  note_windows(c, family);
}

void describe_phi3(const Json& json, GgufFamily& family) {
  const LlamaConfig c = models::parse_phi3_config(json);
  describe_common(c, family);
  require_whole_heads(c, family);
  put_size(family, "attention.sliding_window", c.windows.empty() ? 0 : c.windows.front());
  note_windows(c, family);
}

// Layers have a window but every `period`th: so llama.cpp takes them without being told, and its
// older versions cannot be told. It cannot run a model that has windows in all layers.
void describe_gemma_windows(const LlamaConfig& c, size_t period, GgufFamily& family) {
  const auto widest = std::ranges::max_element(c.windows);
  if (widest == c.windows.end() || *widest == 0) {
    if (family.architecture == "gemma2") refuse(family, "no layer with a window", "some");
    return;
  }
  for (size_t i = 0; i < c.windows.size(); ++i) {
    if ((c.windows[i] != 0) == ((i + 1) % period != 0)) continue;
    refuse(family, fmt::format("layer {} {} a window", i, c.windows[i] != 0 ? "with" : "without"),
           fmt::format("a window in all layers but every {}th", period));
  }
  if (c.windows.size() < period) {
    refuse(family, "a window in every layer", fmt::format("none in layer {}", period - 1));
  }
  put_size(family, "attention.sliding_window", *widest);
}

// llama.cpp takes the scale of the scores from the number of layers, as the published models have
// it.
void require_gemma_scale(const LlamaConfig& c, int64_t layers_of_largest,
                         const GgufFamily& family) {
  const bool is_largest = c.num_hidden_layers == layers_of_largest;
  const int64_t divisor = is_largest ? c.hidden_size / c.num_attention_heads : c.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(divisor));
  if (!c.attention_scale || std::abs(*c.attention_scale / scale - 1) < 1e-6) return;
  const double found = 1 / (*c.attention_scale * *c.attention_scale);
  refuse(family, fmt::format("query_pre_attn_scalar = {:g}", found),
         fmt::format("{} in a model of {} layers", divisor, c.num_hidden_layers));
}

LlamaConfig describe_gemma_common(const LlamaConfig& c, GgufFamily& family) {
  describe_common(c, family);
  require_no_output_bias(c, family);
  family.norms_start_at_one = true;
  if (c.layer_norms.size() == 4) {
    family.layer_names["post_attention_layernorm"] = "post_attention_norm";
    family.layer_names["pre_feedforward_layernorm"] = "ffn_norm";
    family.layer_names["post_feedforward_layernorm"] = "post_ffw_norm";
  }
  return c;
}

void describe_gemma(const Json& json, GgufFamily& family) {
  describe_gemma_common(models::parse_gemma_config(json), family);
  family.can_untie = false;
}

void describe_gemma2(const Json& json, GgufFamily& family) {
  const LlamaConfig c = describe_gemma_common(models::parse_gemma2_config(json), family);
  family.can_untie = false;
  require_gemma_scale(c, /*layers_of_largest=*/46, family);
  describe_gemma_windows(c, /*period=*/2, family);
  if (c.attention_softcap == 0 || c.logit_softcap == 0) {
    refuse(family, "no attn_logit_softcapping or no final_logit_softcapping", "both");
  }
  put_number(family, "attn_logit_softcapping", c.attention_softcap);
  put_number(family, "final_logit_softcapping", c.logit_softcap);
}

void describe_gemma3(const Json& json, GgufFamily& family) {
  const LlamaConfig c = describe_gemma_common(models::parse_gemma3_text_config(json), family);
  require_gemma_scale(c, /*layers_of_largest=*/62, family);
  describe_gemma_windows(c, /*period=*/6, family);
  if (!c.local_rope) return;
  if (c.local_rope->kind != nn::RopeKind::kDefault) {
    refuse(family, "scaled positions in layers with a window", "none there");
  }
  put_number(family, "rope.freq_base_swa", c.local_rope->theta);
}

void describe_mixture(const MixtureConfig& c, GgufFamily& family) {
  describe_common(c.llama, family);
  if (std::ranges::count(c.has_experts, false) > 0) {
    refuse(family, "layers without experts (mlp_only_layers, decoder_sparse_step)", "none");
  }
  if (!c.router.normalizes) refuse(family, "norm_topk_prob = false", "true");
  put_size(family, "expert_count", c.num_experts);
  put_size(family, "expert_used_count", c.router.experts_per_token);
  family.num_experts = c.num_experts;
  family.layer_names[c.module + "." + c.router_name] = "ffn_gate_inp";
  family.experts = c.module + ".experts.";
  family.expert_names = {
      {c.gate_name, "ffn_gate_exps"}, {c.up_name, "ffn_up_exps"}, {c.down_name, "ffn_down_exps"}};
  note_windows(c.llama, family);
}

void describe_mixtral(const Json& json, GgufFamily& family) {
  describe_mixture(models::parse_mixtral_config(json), family);
  family.turns_pairs = true;
}

void describe_qwen3_moe(const Json& json, GgufFamily& family) {
  const MixtureConfig c = models::parse_qwen3_moe_config(json);
  describe_mixture(c, family);
  require_no_output_bias(c.llama, family);
  put_size(family, "expert_feed_forward_length", c.intermediate_size);
}

void describe_gpt2(const Json& json, GgufFamily& family) {
  const models::Gpt2Config c = models::parse_gpt2_config(json);
  if (!c.scale_attn_weights || c.scale_attn_by_inverse_layer_idx) {
    refuse(family, "scale_attn_weights or scale_attn_by_inverse_layer_idx", "the usual scale");
  }
  if (c.activation != nn::Activation::kGeluTanh) {
    refuse(family, "another activation_function", "gelu_new");
  }
  family.layers = "transformer.h.";
  family.layer_names = kGpt2Names;
  family.other_names = {{"transformer.wte", "token_embd"},
                        {"transformer.wpe", "position_embd"},
                        {"transformer.ln_f", "output_norm"},
                        {"lm_head", "output"}};
  put_size(family, "block_count", c.n_layer);
  put_size(family, "context_length", c.n_positions);
  put_size(family, "embedding_length", c.n_embd);
  put_size(family, "feed_forward_length", c.n_inner);
  put_size(family, "attention.head_count", c.n_head);
  put_number(family, "attention.layer_norm_epsilon", c.layer_norm_epsilon);
  put_size(family, "vocab_size", c.vocab_size);
}

struct Row {
  const char* architecture;
  void (*describe)(const Json& config, GgufFamily& family);
};

const std::map<std::string, Row>& families() {
  static const std::map<std::string, Row> kFamilies = {
      {"gemma", {"gemma", describe_gemma}},
      {"gemma2", {"gemma2", describe_gemma2}},
      {"gemma3_text", {"gemma3", describe_gemma3}},
      {"gpt2", {"gpt2", describe_gpt2}},
      {"llama", {"llama", describe_llama<models::parse_llama_config>}},
      {"ministral", {"llama", describe_llama<models::parse_mistral_config>}},
      {"mistral", {"llama", describe_llama<models::parse_mistral_config>}},
      {"mixtral", {"llama", describe_mixtral}},
      {"phi3", {"phi3", describe_phi3}},
      {"qwen2", {"qwen2", describe_qwen2}},
      {"qwen3", {"qwen3", describe_qwen3}},
      {"qwen3_moe", {"qwen3moe", describe_qwen3_moe}}};
  return kFamilies;
}

}  // namespace

GgufFamily describe_family(const Json& config) {
  const std::string type = models::ConfigReader(config).text("model_type", "");
  const auto found = families().find(type);
  if (found == families().end()) {
    std::vector<std::string> known;
    for (const auto& [name, row] : families()) known.push_back(name);
    const bool has_text = config.contains("text_config");
    throw ConfigError("config.json: found model_type \"{}\", expected one of {} for --to gguf; {}",
                      type, fmt::join(known, ", "),
                      has_text ? "take its language model out of it first, with --to text-model"
                               : "use a model of one of these families");
  }
  if (models::num_labels(config) > 0) {
    throw ConfigError(
        "config.json: found a sequence classification model ({}), expected one that predicts "
        "tokens for --to gguf; use such a model",
        config.value("architectures", Json::array()).dump());
  }
  GgufFamily family;
  family.architecture = found->second.architecture;
  found->second.describe(config, family);
  return family;
}

}  // namespace strata::checkpoint
