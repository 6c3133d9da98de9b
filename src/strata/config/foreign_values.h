// Values that settings have in other programs' files and guides, or in other people's words, and
// what says the same here. Never: a value of the settings table; these stay unknown, and only the
// message that refuses them knows more.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "strata/config/settings/table.h"

namespace strata::config {

struct ForeignValue {
  std::string_view setting;
  std::string_view value;        // in small letters, with underscores
  std::string_view use;          // the value here; empty: none has quite its meaning
  std::string_view advice = {};  // where one value does not say it all: what to do
};

std::span<const ForeignValue> foreign_values();

// "use warmup_stable_decay"; empty: nothing is known of the value.
std::string foreign_value_advice(const Setting& setting, std::string_view value);

}  // namespace strata::config
