// What llama.cpp calls the families that it knows: the architecture of each and the keys that
// describe a model. Owns: the table of families, what of a config.json a GGUF file can say. Never:
// weights (tensor_plan.h), the tokenizer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "strata/base/json.h"
#include "strata/hf/formats/gguf.h"

namespace strata::checkpoint {

struct GgufFamily {
  std::string architecture;  // "llama"
  hf::GgufMetadata keys;     // "llama.block_count", ...
  // Modules in a layer, as the model's weights name them, and after "blk.N.".
  std::map<std::string, std::string> layer_names;
  std::string layers = "model.layers.";            // before the number of a layer
  std::map<std::string, std::string> other_names;  // whole names of modules outside of layers
  // Experts: "mlp.experts." in a layer, and what comes after the number.
  std::string experts;
  std::map<std::string, std::string> expert_names;
  int64_t num_experts = 0;
  // Rows of queries and keys stand in pairs that turn together, not in halves of a head.
  bool turns_pairs = false;
  int64_t query_heads = 0, key_heads = 0;
  bool norms_start_at_one = false;  // the file holds what is added to 1
  bool can_untie = true;            // the output layer may be another matrix than the embedding
  // Tensors beside the model's weights.
  std::vector<std::pair<std::string, std::vector<float>>> extra_tensors;
  std::vector<std::string> notes;  // what somebody should know, a line each
};

// ConfigError for a family that is not in the table, with those that are, and for what llama.cpp's
// architecture cannot express (a bias, a scale, rotary positions); errors of models/ for a broken
// config.json.
GgufFamily describe_family(const Json& config);

}  // namespace strata::checkpoint
