#include "strata/hf/weight_names.h"

#include <string_view>

namespace strata::hf {
namespace {

struct Body {
  const char* model_type;
  std::string_view prefix;
  std::string_view modules[3];  // how the names of its weights begin; empty: no more
};

constexpr Body kBodies[] = {
    {"bloom", "transformer.", {"word_embeddings", "h.", "ln_f."}},
    {"gpt_neox", "gpt_neox.", {"embed_in.", "layers.", "final_layer_norm."}},
    {"opt", "model.", {"decoder."}},
};

constexpr std::string_view kOutputLayer = "lm_head.";
constexpr std::string_view kNeoXOutputLayer = "embed_out.";

bool is_neox(const Json& config) { return config.value("model_type", Json()) == "gpt_neox"; }

std::string with_other_start(const std::string& name, std::string_view from, std::string_view to) {
  return name.starts_with(from) ? std::string(to) + name.substr(from.size()) : name;
}

}  // namespace

std::string name_in_model(const Json& config, const std::string& name) {
  for (const Body& body : kBodies) {
    if (config.value("model_type", Json()) != body.model_type) continue;
    for (const std::string_view module : body.modules) {
      if (!module.empty() && name.starts_with(module)) return std::string(body.prefix) + name;
    }
  }
  return is_neox(config) ? with_other_start(name, kNeoXOutputLayer, kOutputLayer) : name;
}

std::string name_in_folder(const Json& config, const std::string& name) {
  return is_neox(config) ? with_other_start(name, kOutputLayer, kNeoXOutputLayer) : name;
}

bool is_buffer(std::string_view name) {
  return name.ends_with(".gate.e_score_correction_bias") || name.ends_with(".layer_scalar");
}

}  // namespace strata::hf
