// Values of the settings.json that a run leaves, as texts. Owns: that older versions wrote every
// value as a text, and newer ones booleans, numbers, lists and null. Never: which settings there
// are.
#pragma once

#include <string>
#include <string_view>

#include "strata/base/json.h"

namespace strata::checkpoint {

// "true", "2e-05", "q_proj,v_proj", "none" for null; the same of either form. Empty: not there.
std::string setting_text(const Json& settings, std::string_view name);

}  // namespace strata::checkpoint
