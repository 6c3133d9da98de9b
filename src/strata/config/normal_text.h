// Texts of settings that mean the same though they are written otherwise: blanks, "None". Owns: how
// they are compared. Never: what a run is given, which stays as somebody wrote it.
#pragma once

#include <string>

#include "strata/config/settings/table.h"

namespace strata::config {

// What all texts of the setting that mean the same have in common.
std::string normal_text(const Setting& setting, const std::string& text);

// Of a JSON object, whatever the order of its keys; empty for one without keys. What is no JSON
// stays as it is.
std::string normal_json(const std::string& text);
// The same of patterns, of which the first that matches counts: their order matters.
std::string normal_patterns(const std::string& text);

}  // namespace strata::config
