// Finds the implementation of a model family by config.json's "model_type". Owns: the list of
// families. Never: weights; shard/ gives parameters their memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "strata/base/json.h"
#include "strata/models/model.h"

namespace strata::hf {
class ModelFolder;
}

namespace strata::models {

struct ModelOptions {
  // Element type at rest of all base weights.
  at::ScalarType storage = at::kFloat;
  // The type to which buffers (rotary frequencies) are rounded.
  at::ScalarType buffers = at::kFloat;
  // The output layer has a weight of its own, whatever config.json says of ties.
  bool is_untied = false;
  // The files lack the first layer of the head for whole documents, see lacks_head_dense().
  bool has_new_dense = false;
};

// Creates blocks and parameters without memory. Unknown model_type: ConfigError listing the known
// ones; values that contradict each other: FormatError naming the key.
std::unique_ptr<Model> create_model(const Json& config, const ModelOptions& options);

std::vector<std::string> supported_model_types();

// transformers' class of the family for whole texts ("LlamaForSequenceClassification"), see
// reward_head.h; empty: it has none.
std::string classifier_of(const std::string& model_type);

// For families that hold the matrices of all experts as one parameter: whether it is [experts, out,
// in]. ConfigError for a config.json without a model_type that is known.
bool expert_rows_are_outputs(const Json& config);

// A layer of single experts in files, by the end of its name, which the reference holds in a
// parameter of all experts: after so many other layers' outputs, as many as its own each.
struct ExpertLayerName {
  const char *layer, *parameter;
  int64_t place = 0;
};
// For families whose layers of experts no layer's name selects; empty for others.
std::vector<ExpertLayerName> expert_layer_names(const Json& config);

// Whether the family has encoder and decoder; false for an unknown one.
bool has_encoder(const Json& config);
// Whether it is an encoder alone, which looks at whole texts and predicts no tokens; false for an
// unknown one.
bool is_encoder(const Json& config);
// Whether the family's head for whole documents begins with a layer that its other models may have,
// and the folder's files lack it.
bool lacks_head_dense(const hf::ModelFolder& folder);

// Where each position has a row of weights, beyond which nothing is computed.
struct PositionTable {
  int64_t num_positions = 0;
  const char* key = "";  // of config.json, which says how many
  // The token whose row comes before all others: positions count from the one after it, and
  // tokens of padding have it. None: they count from the table's beginning.
  std::optional<int64_t> padding_id = {};
};
// Nothing of families that compute positions, and of unknown ones.
std::optional<PositionTable> position_table(const Json& config);

}  // namespace strata::models
