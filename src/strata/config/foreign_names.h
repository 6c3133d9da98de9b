// Names that settings have in other programs' files (axolotl, LLaMA-Factory, TRL's mixtures,
// alignment-handbook), and what says the same here. Never: a name of the settings table; these
// names stay unknown, and only the message that refuses them knows more.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "strata/config/settings/table.h"

namespace strata::config {

struct ForeignName {
  std::string_view name;
  std::string_view setting;      // the name here; empty: none has quite its meaning
  std::string_view advice = {};  // where one name does not say it all: what to do
};

std::span<const ForeignName> foreign_names();
const ForeignName* find_foreign_name(std::string_view name);  // with hyphens or underscores
std::string foreign_advice(
    std::string_view name);  // "use max_length"; empty: the name is not known

// What to do about a name that is no setting: what another program's name is called here, or "did
// you mean --max_length?" for the closest setting that `accept` admits. Empty: nothing is like it.
std::string unknown_advice(std::string_view name, bool (*accept)(const Setting&),
                           std::string_view dashes = "");

}  // namespace strata::config
