#include "strata/models/deepseek/config.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/moe/config_parts.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

LlamaConfig defaults(const std::string& family) {
  LlamaConfig c;
  c.layer_class = family + "DecoderLayer";
  c.architecture = family + "ForCausalLM";
  c.lora_targets = c.ia3_targets = {};  // PEFT has none
  c.never_quantized = {"mlp.gate"};
  c.names_mean_experts = true;
  c.has_latents = true;
  return c;
}

int64_t read_turned_dim(const ConfigReader& config, const char* other_key, int64_t fallback) {
  const auto named = config.optional_integer("qk_rope_head_dim");
  const auto other = other_key != nullptr ? config.optional_integer(other_key) : std::nullopt;
  if (!other) return config.positive_integer("qk_rope_head_dim", fallback);
  if (named && *named != *other) {
    throw FormatError(
        "config.json: found qk_rope_head_dim = {} and {} = {}, expected one number, which both "
        "name in this family; fix the file",
        *named, other_key, *other);
  }
  return config.positive_integer(other_key, fallback);
}

void parse_sizes(const ConfigReader& config, DeepseekConfig& c) {
  LatentAttentionConfig& attention = c.attention;
  if (!config.json().contains("q_lora_rank") || config.has("q_lora_rank")) {
    attention.query_rank =
        config.positive_integer("q_lora_rank", attention.query_rank.value_or(1536));
  } else {
    attention.query_rank.reset();
  }
  attention.key_value_rank = config.positive_integer("kv_lora_rank", attention.key_value_rank);
  nn::LatentHeads& heads = attention.heads;
  heads.num_heads = c.mixture.llama.num_attention_heads;
  heads.plain_dim = config.positive_integer("qk_nope_head_dim", heads.plain_dim);
  heads.turned_dim = read_turned_dim(config, c.turned_key, heads.turned_dim);
  heads.value_dim = config.positive_integer("v_head_dim", heads.value_dim);
  if (heads.value_dim <= heads.key_dim()) return;
  throw ConfigError(
      "config.json: found v_head_dim = {}, expected at most qk_nope_head_dim + qk_rope_head_dim = "
      "{}; use a checkpoint with such heads",
      heads.value_dim, heads.key_dim());
}

// The reference makes keys of every query head, whatever the key says.
void check_key_value_heads(const ConfigReader& config, const LlamaConfig& c) {
  const int64_t found = key_value_heads(config, c, c.num_attention_heads);
  if (found == c.num_attention_heads) return;
  throw ConfigError(
      "config.json: found num_key_value_heads = {}, expected num_attention_heads = {}, because "
      "latent attention makes keys of each; fix the file",
      found, c.num_attention_heads);
}

// GLM's class reads it, and its heads then have fewer angles than channels that it turns.
void require_all_to_turn(const nn::RopeOptions& rope, const nn::LatentHeads& heads) {
  if (rope.head_dim == heads.turned_dim) return;
  throw ConfigError(
      "config.json: found a partial_rotary_factor by which {} of qk_rope_head_dim = {} channels "
      "turn, expected 1, without which transformers fails; fix the file",
      rope.head_dim, heads.turned_dim);
}

// `c` holds the family's defaults.
void parse_layers(const ConfigReader& config, DeepseekConfig& c) {
  LlamaConfig& llama = c.mixture.llama;
  parse_common(config, llama);
  check_key_value_heads(config, llama);
  llama.num_key_value_heads = llama.num_attention_heads;
  parse_sizes(config, c);
  const nn::LatentHeads& heads = c.attention.heads;
  llama.head_dim = heads.key_dim();
  llama.input_bias = llama.output_bias = config.boolean("attention_bias", false);
  check_relations(llama);
  refuse_windows(config, llama.num_hidden_layers);
  llama.rope = parse_rope(config, {.head_dim = heads.turned_dim,
                                   .max_position_embeddings = llama.max_position_embeddings,
                                   .default_part = c.rotary_part,
                                   .key = "qk_rope_head_dim"});
  require_all_to_turn(llama.rope, heads);
  llama.rope.first_channel = heads.plain_dim;
  llama.rope.pairs = ops::RopePairs::kNeighbours;
  llama.attention_scale =
      parse_score_scale(config) / std::sqrt(static_cast<double>(heads.key_dim()));
}

// Beside the MLPs of the first layers.
struct ExpertCounts {
  int64_t routed, shared;
  std::string other_name = {};  // of the key of the first
};

void parse_experts(const ConfigReader& config, const ExpertCounts& defaults, MixtureConfig& c) {
  c.num_experts =
      read_num_experts(config, "n_routed_experts", defaults.routed, defaults.other_name);
  c.intermediate_size = config.positive_integer("moe_intermediate_size", c.intermediate_size);
  add_shared_experts(c, config.positive_integer("n_shared_experts", defaults.shared));
  c.wide_router = true;
}

void put_experts_from(const ConfigReader& config, int64_t fallback, MixtureConfig& c) {
  require_not_null(config, "first_k_dense_replace");
  c.has_experts = layers_from(config.optional_integer("first_k_dense_replace").value_or(fallback),
                              c.llama.num_hidden_layers);
}

void require_each_layer(const ConfigReader& config) {
  const int64_t step = config.optional_integer("moe_layer_freq").value_or(1);
  if (step == 1) return;
  throw ConfigError(
      "config.json: found moe_layer_freq = {}, expected 1, as transformers has it; use a "
      "checkpoint with experts in every layer after the first ones",
      step);
}

nn::RouterOptions read_softmax_router(const ConfigReader& config, int64_t num_experts) {
  const auto require = [&](const char* key) {
    if (config.has(key)) return;
    throw FormatError("config.json: found no {}, expected a number; add it to the file", key);
  };
  require("num_experts_per_tok");
  nn::RouterOptions router{.experts_per_token = config.positive_integer("num_experts_per_tok", 1),
                           .normalizes = false,
                           .rounds = false,
                           .scale = config.positive_number("routed_scaling_factor", 1.0)};
  if (config.boolean("norm_topk_prob", false)) {
    throw ConfigError(
        "config.json: found norm_topk_prob = true, expected false, because transformers does not "
        "normalise the weights of this family; fix the file");
  }
  check_router(router.experts_per_token, num_experts, "n_routed_experts");
  const std::string method = config.text("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    require("n_group");
    require("topk_group");
    router.groups = read_expert_groups(config, num_experts, router.experts_per_token,
                                       {.count = 1, .chosen = 1}, /*least_size=*/1);
  } else if (method != "greedy") {
    throw ConfigError(
        "config.json: found topk_method \"{}\", expected \"greedy\" or \"group_limited_greedy\"; "
        "use a checkpoint whose experts are chosen so",
        method);
  }
  return router;
}

void refuse_mlp_bias(const ConfigReader& config) {
  if (!config.boolean("mlp_bias", false)) return;
  throw ConfigError(
      "config.json: found mlp_bias = true, expected false; use a checkpoint without such biases");
}

}  // namespace

DeepseekConfig parse_deepseek_v2_config(const Json& json) {
  const ConfigReader config(json);
  DeepseekConfig c{.mixture = {.llama = defaults("DeepseekV2"), .intermediate_size = 1407},
                   .attention = {.query_rank = 1536,
                                 .heads = {.plain_dim = 128, .turned_dim = 64, .value_dim = 128}}};
  c.mixture.llama.vocab_size = 102400;
  parse_layers(config, c);
  refuse_mlp_bias(config);
  require_text(config, "scoring_func", "softmax");
  require_each_layer(config);
  parse_experts(config, {.routed = 64, .shared = 2, .other_name = "num_experts"}, c.mixture);
  c.mixture.router = read_softmax_router(config, c.mixture.num_experts);
  put_experts_from(config, 0, c.mixture);
  return c;
}

// What both families with sigmoids share; `c` holds the family's defaults.
static void parse_sigmoid_family(const ConfigReader& config, int64_t num_experts,
                                 const nn::SigmoidRouterOptions& router, DeepseekConfig& c) {
  parse_layers(config, c);
  // Where the reference takes null at all, it means false.
  require_not_null(config, {"norm_topk_prob", "rope_interleave"});
  if (!config.boolean("rope_interleave", true)) {
    c.mixture.llama.rope.pairs = ops::RopePairs::kHalves;
  }
  c.mixture.llama.num_ignored_layers = read_num_prediction_layers(config);
  require_text(config, "scoring_func", "sigmoid");
  require_text(config, "topk_method", "noaux_tc");
  require_each_layer(config);
  parse_experts(config, {.routed = num_experts, .shared = 1}, c.mixture);
  c.mixture.sigmoid_router = read_sigmoid_router(config, c.mixture.num_experts, router);
}

DeepseekConfig parse_deepseek_v3_config(const Json& json) {
  const ConfigReader config(json);
  DeepseekConfig c{.mixture = {.llama = defaults("DeepseekV3"), .intermediate_size = 2048},
                   .attention = {.query_rank = 1536,
                                 .heads = {.plain_dim = 128, .turned_dim = 64, .value_dim = 128}}};
  c.mixture.llama.vocab_size = 129280;
  c.mixture.llama.hidden_size = 7168;
  c.mixture.llama.intermediate_size = 18432;
  c.mixture.llama.num_hidden_layers = 61;
  c.mixture.llama.num_attention_heads = 128;
  c.mixture.llama.max_position_embeddings = 4096;
  parse_sigmoid_family(config, 256,
                       {.experts_per_token = 8,
                        .normalizes = true,
                        .scale = 2.5,
                        .groups = {.count = 8, .chosen = 4}},
                       c);
  put_experts_from(config, 3, c.mixture);
  return c;
}

DeepseekConfig parse_glm4_moe_lite_config(const Json& json) {
  const ConfigReader config(json);
  DeepseekConfig c{.mixture = {.llama = defaults("Glm4MoeLite"), .intermediate_size = 1536},
                   .attention = {.query_rank = 768,
                                 .heads = {.plain_dim = 192, .turned_dim = 64, .value_dim = 256}},
                   .turned_key = "head_dim",
                   .rotary_part = 1.0};
  c.mixture.llama.vocab_size = 154880;
  c.mixture.llama.hidden_size = 2048;
  c.mixture.llama.intermediate_size = 10240;
  c.mixture.llama.num_hidden_layers = 47;
  c.mixture.llama.num_attention_heads = 20;
  c.mixture.llama.max_position_embeddings = 202752;
  c.mixture.llama.rms_norm_eps = 1e-5;
  parse_sigmoid_family(config, 64, {.experts_per_token = 4, .normalizes = true, .scale = 1.8}, c);
  c.mixture.has_experts = read_sparse_layers(config, c.mixture.llama.num_hidden_layers);
  return c;
}

DeepseekConfig parse_minicpm3_config(const Json& json) {
  const ConfigReader config(json);
  DeepseekConfig c{.mixture = {.llama = defaults("MiniCPM3")},
                   .attention = {.query_rank = 768,
                                 .key_value_rank = 256,
                                 .heads = {.plain_dim = 64, .turned_dim = 32, .value_dim = 64}}};
  LlamaConfig& llama = c.mixture.llama;
  llama.never_quantized = {};
  llama.names_mean_experts = false;
  llama.vocab_size = 73448;
  llama.hidden_size = 2560;
  llama.intermediate_size = 6400;
  llama.num_hidden_layers = 62;
  llama.num_attention_heads = 40;
  llama.max_position_embeddings = 32768;
  llama.initializer_range = 0.1;
  llama.rms_norm_eps = 1e-5;
  llama.tie_word_embeddings = true;
  c.attention.heads.value_dim =
      std::max<int64_t>(1, config.positive_integer("hidden_size", llama.hidden_size) /
                               config.positive_integer("num_attention_heads", 40));
  parse_layers(config, c);
  check_relations(llama, /*splits_hidden_size=*/true);
  llama.rope.pairs = ops::RopePairs::kHalves;
  llama.mlp_bias = config.boolean("mlp_bias", false);
  llama.embedding_scale = config.positive_number("scale_emb", 12.0);
  llama.buffer_numel = 1;  // the scale is an integer there, of two words
  // A factor of null is none.
  const double depth = std::sqrt(static_cast<double>(llama.num_hidden_layers));
  const auto given = [&](const char* key, double fallback, double none) {
    const bool is_null = json.contains(key) && !config.has(key);
    return is_null ? none : config.positive_number(key, fallback);
  };
  const auto hidden = static_cast<double>(llama.hidden_size);
  llama.residual_multiplier = given("scale_depth", 1.4, depth) / depth;
  llama.logits_scaling = hidden / given("dim_model_base", 256, hidden);
  c.mixture.has_experts.assign(static_cast<size_t>(llama.num_hidden_layers), false);
  return c;
}

DeepseekConfig parse_youtu_config(const Json& json) {
  const ConfigReader config(json);
  DeepseekConfig c{.mixture = {.llama = defaults("Youtu")},
                   .attention = {.query_rank = 1536,
                                 .heads = {.plain_dim = 128, .turned_dim = 64, .value_dim = 128}}};
  LlamaConfig& llama = c.mixture.llama;
  llama.never_quantized = {};
  llama.names_mean_experts = false;
  llama.vocab_size = 128256;
  llama.hidden_size = config.positive_integer("hidden_size", 2048);
  llama.intermediate_size = 6144;
  llama.num_attention_heads = 16;
  llama.max_position_embeddings = 131072;
  llama.tie_word_embeddings = true;
  llama.initializer_range = 2.0 / std::sqrt(5.0 * static_cast<double>(llama.hidden_size));
  parse_layers(config, c);
  if (!config.boolean("rope_interleave", true)) llama.rope.pairs = ops::RopePairs::kHalves;
  llama.embedding_range = 2.0 * llama.initializer_range;
  if (config.number("embedding_initializer_range", 0) != 0) {  // zero is as none
    llama.embedding_range = config.positive_number("embedding_initializer_range", 1.0);
  }
  c.mixture.has_experts.assign(static_cast<size_t>(llama.num_hidden_layers), false);
  return c;
}

}  // namespace strata::models
