// What a setting's field holds, as text and for people. Owns: the one way to write each value, what
// is expected of a setting. Never: how a text is read (value.h).
#pragma once

#include <string>

#include "strata/base/json.h"
#include "strata/config/settings/table.h"

namespace strata::config {

// True when a flag without a value means true.
bool is_switch(const Setting& setting);
bool is_list(const Setting& setting);

// Whether the default is true, so that --no_NAME is known.
bool is_true_by_default(const Setting& setting);

// Requires: the setting is bound. Null optional: "none"; booleans "true", "false"; lists "a,b".
std::string field_text(const Setting& setting, const RunConfig& config);

// The same as a boolean, number, text, list of texts, or null where that means the same in a file.
Json field_json(const Setting& setting, const RunConfig& config);

// Whether "" says of a text that nothing is chosen.
bool is_empty_by_default(const Setting& setting);

// "an integer of at least 1", "one of linear, cosine", ...
std::string expectation(const Setting& setting);

}  // namespace strata::config
