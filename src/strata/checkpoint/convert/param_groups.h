// What other tools keep besides tensors, read off a state and the settings of its run: torch's
// param_groups and PEFT's adapter_config.json. Owns: nothing.
#pragma once

#include <string>
#include <vector>

#include "strata/checkpoint/convert/saved_state.h"
#include "strata/hf/formats/torch_file.h"

namespace strata::checkpoint {

// A list of the two groups that Trainer makes: weights that decay and the rest.
hf::PyValue param_groups(const SavedState& state);

// The optimizer's tensors, those of one weight side by side.
std::vector<size_t> places_by_weight(const SavedState& state);

// adapter_config.json for an adapter's weights. Throws ConfigError when neither a config nor the
// settings of a run are known.
std::string adapter_config_text(const SavedState& state);

// The text of a setting of the run; empty when it is not known.
std::string setting_of(const SavedState& state, const char* name);

}  // namespace strata::checkpoint
