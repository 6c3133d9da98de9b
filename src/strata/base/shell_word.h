// Words of shell commands that are written for somebody to run. Never runs one.
#pragma once

#include <string>

namespace strata {

// In quotes where a shell would read something else in it.
std::string shell_word(const std::string& word);

}  // namespace strata
