#include "strata/hf/weight_names.h"

#include <algorithm>
#include <string_view>

namespace strata::hf {
namespace {

struct Body {
  const char* model_type;  // null: any other
  std::string_view prefix;
  std::string_view modules[9];  // how the names of its weights begin; empty: no more
};

constexpr Body kBodies[] = {
    {"bert", "bert.", {"embeddings.", "encoder.", "pooler."}},
    {"roberta", "roberta.", {"embeddings.", "encoder.", "pooler."}},
    {"xlm-roberta", "roberta.", {"embeddings.", "encoder.", "pooler."}},
    {"albert", "albert.", {"embeddings.", "encoder.", "pooler."}},
    {"camembert", "roberta.", {"embeddings.", "encoder.", "pooler."}},
    {"electra", "electra.", {"embeddings.", "embeddings_project.", "encoder."}},
    {"mpnet", "mpnet.", {"embeddings.", "encoder.", "pooler."}},
    {"deberta", "deberta.", {"embeddings.", "encoder."}},
    {"deberta-v2", "deberta.", {"embeddings.", "encoder."}},
    {"distilbert", "distilbert.", {"embeddings.", "transformer."}},
    {"modernbert", "model.", {"embeddings.", "layers.", "final_norm."}},
    {"bart", "model.", {"shared.", "encoder.", "decoder."}},
    {"m2m_100", "model.", {"shared.", "encoder.", "decoder."}},
    {"marian", "model.", {"shared.", "encoder.", "decoder."}},
    {"mbart", "model.", {"shared.", "encoder.", "decoder."}},
    {"pegasus", "model.", {"shared.", "encoder.", "decoder."}},
    {"bloom", "transformer.", {"word_embeddings", "h.", "ln_f."}},
    {"openai-gpt", "transformer.", {"tokens_embed.", "positions_embed.", "h."}},
    {"gpt_neo", "transformer.", {"wte.", "wpe.", "h.", "ln_f."}},
    {"mpt", "transformer.", {"wte.", "blocks.", "norm_f."}},
    {"codegen", "transformer.", {"wte.", "h.", "ln_f."}},
    {"gptj", "transformer.", {"wte.", "h.", "ln_f."}},
    {"gpt_neox", "gpt_neox.", {"embed_in.", "layers.", "final_layer_norm."}},
    {"opt", "model.", {"decoder."}},
    {"falcon", "transformer.", {"word_embeddings.", "h.", "ln_f."}},
    {"xglm", "model.", {"embed_tokens.", "embed_positions.", "layers.", "layer_norm."}},
    {"nemotron_h", "model.", {"embeddings.", "layers.", "norm_f."}},
    {nullptr,
     "model.",
     {"embed_tokens.", "layers.", "norm.", "final_layernorm.", "embedding_norm.",
      "embed_tokens_per_layer.", "per_layer_model_projection.", "per_layer_projection_norm."}},
};

// The start of all names of a body.
struct Start {
  const char* model_type;
  std::string_view in_folder, in_model;
  bool writes = true;  // a folder may hold the model's names as well: those are written
};

// A text model that transformers took out of a whole Qwen3.5 it saves under the whole's names.
constexpr Start kStarts[] = {{"nemotron_h", "backbone.", "model."},
                             {"qwen3_5_text", "model.language_model.", "model.", false},
                             {"qwen3_5_moe_text", "model.language_model.", "model.", false}};

// The end of a name.
struct End {
  std::string_view model_types;  // how they begin
  std::string_view in_folder, in_model;
};

constexpr std::string_view kGranites = "granitemoe";  // granitemoeshared, granitemoehybrid, too
// Whose folders hold the model's own names.
constexpr std::string_view kGraniteWithWindows = "granitemoe_swa";

constexpr End kEnds[] = {
    {"ernie4_5_moe", ".mlp.moe_statics.e_score_correction_bias",
     ".mlp.gate.moe_statics.e_score_correction_bias"},
    {"exaone_moe", ".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"},
    {kGranites, ".block_sparse_moe.input_linear.weight", ".block_sparse_moe.experts.gate_up_proj"},
    {kGranites, ".block_sparse_moe.output_linear.weight", ".block_sparse_moe.experts.down_proj"},
    {kGranites, ".block_sparse_moe.router.layer.weight", ".block_sparse_moe.router.weight"},
};

constexpr std::string_view kOutputLayer = "lm_head.";
constexpr std::string_view kNeoXOutputLayer = "embed_out.";

bool is_neox(const Json& config) { return config.value("model_type", Json()) == "gpt_neox"; }

std::string with_other_end(const Json& config, const std::string& name, std::string_view End::*from,
                           std::string_view End::*to) {
  const Json value = config.value("model_type", Json());
  if (!value.is_string()) return name;
  const std::string type = value.get<std::string>();
  if (type == kGraniteWithWindows) return name;
  for (const End& end : kEnds) {
    if (!type.starts_with(end.model_types) || !name.ends_with(end.*from)) continue;
    return name.substr(0, name.size() - (end.*from).size()) + std::string(end.*to);
  }
  return name;
}

std::string with_other_start(const std::string& name, std::string_view from, std::string_view to) {
  return name.starts_with(from) ? std::string(to) + name.substr(from.size()) : name;
}

// Norms in files that came from TensorFlow (BERT's).
std::string with_norm_of_today(const std::string& name) {
  constexpr std::string_view kNames[][2] = {{"LayerNorm.gamma", "LayerNorm.weight"},
                                            {"LayerNorm.beta", "LayerNorm.bias"}};
  for (const auto& [old, now] : kNames) {
    if (name.ends_with(old)) return name.substr(0, name.size() - old.size()) + std::string(now);
  }
  return name;
}

const Start* start_of(const Json& config) {
  const Json type = config.value("model_type", Json());
  for (const Start& start : kStarts) {
    if (type == start.model_type) return &start;
  }
  return nullptr;
}

// Names of a body alone get the whole model's prefix.
std::string with_body(const Json& config, const std::string& name) {
  const Json type = config.value("model_type", Json());
  const Body* body = std::ranges::find_if(kBodies, [&](const Body& row) {
    return row.model_type == nullptr || type == row.model_type;
  });
  const bool is_bare = std::ranges::any_of(body->modules, [&](std::string_view module) {
    return !module.empty() && name.starts_with(module);
  });
  return is_bare ? std::string(body->prefix) + name : name;
}

}  // namespace

std::string name_in_model(const Json& config, const std::string& in_folder) {
  const std::string name = with_body(config, with_norm_of_today(in_folder));
  if (is_neox(config)) return with_other_start(name, kNeoXOutputLayer, kOutputLayer);
  if (const Start* start = start_of(config)) {
    return with_other_start(name, start->in_folder, start->in_model);
  }
  return with_other_end(config, name, &End::in_folder, &End::in_model);
}

std::string name_in_folder(const Json& config, const std::string& name) {
  if (is_neox(config)) return with_other_start(name, kOutputLayer, kNeoXOutputLayer);
  if (const Start* start = start_of(config)) {
    return start->writes ? with_other_start(name, start->in_model, start->in_folder) : name;
  }
  return with_other_end(config, name, &End::in_model, &End::in_folder);
}

bool is_buffer(std::string_view name) { return keeps_float32(name) || name == "final_logits_bias"; }

bool keeps_float32(std::string_view name) {
  return name.ends_with(".e_score_correction_bias") || name.ends_with(".expert_bias") ||
         name.ends_with(".layer_scalar");
}

}  // namespace strata::hf
