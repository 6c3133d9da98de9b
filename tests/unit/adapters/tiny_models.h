// Models without weights for tests of names and shapes: those of LlamaConfig, MixtralConfig and
// GptOssConfig with these sizes, everything else by default.
#pragma once

#include <memory>

#include "strata/base/json.h"
#include "strata/models/registry.h"

namespace strata::adapters {

inline Json tiny_sizes(const char* model_type) {
  return {{"model_type", model_type}, {"vocab_size", 37},       {"hidden_size", 20},
          {"intermediate_size", 28},  {"num_hidden_layers", 3}, {"num_attention_heads", 2},
          {"num_key_value_heads", 1}, {"head_dim", 10}};
}

inline std::unique_ptr<models::Model> tiny_llama() {
  return models::create_model(tiny_sizes("llama"), {});
}

// Two experts, layers by names: w1 and w3, which are one parameter in transformers, and w2.
inline std::unique_ptr<models::Model> tiny_mixtral() {
  Json config = tiny_sizes("mixtral");
  config["num_local_experts"] = 2;
  return models::create_model(config, {});
}

// Two experts that are parameters here, too: gate_up_proj and down_proj.
inline std::unique_ptr<models::Model> tiny_gpt_oss() {
  Json config = tiny_sizes("gpt_oss");
  config["num_local_experts"] = config["num_experts_per_tok"] = 2;
  return models::create_model(config, {});
}

}  // namespace strata::adapters
