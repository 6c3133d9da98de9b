// What of a base's files is looked at before there is a model: their type, whether they tie
// the output layer and have all of a head, and what of them is in fp8 or whole numbers. Owns: rank
// 0's look, shared with all. Never: values (initial_values.h).
#pragma once

#include <optional>

#include "strata/base/json.h"
#include "strata/comm/group.h"
#include "strata/config/run_config.h"
#include "strata/models/fp8_weights.h"
#include "strata/models/int_weights.h"

namespace strata::train {

// Where config.json names no type it is that of the files. Collective.
void name_type(const config::ModelConfig& config, bool is_imagined, comm::Group& world,
               Json& model_config);

// Which matrices the files hold in fp8; nothing where config.json speaks of none, and in a plan
// without files. Collective.
std::optional<models::Fp8Tiles> share_fp8(const config::ModelConfig& config, bool is_imagined,
                                          comm::Group& world, const Json& model_config);

// The same of whole numbers.
std::optional<models::IntFormats> share_ints(const config::ModelConfig& config, bool is_imagined,
                                             comm::Group& world, const Json& model_config);

// What of the files says how the model is.
struct LayersInFiles {
  bool is_untied = false;      // they hold an output layer of its own, although config.json ties it
  bool has_new_dense = false;  // see models::lacks_head_dense()
};
// All ranks learn it before adapters take hold of the weights; in a plan, where the file is there.
// Collective.
LayersInFiles share_layers(const config::ModelConfig& config, bool is_imagined, comm::Group& world,
                           const Json& model_config);

}  // namespace strata::train
