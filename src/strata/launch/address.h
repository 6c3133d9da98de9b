// Names of machines. Never: opens a connection.
#pragma once

#include <string>

namespace strata::launch {

// Throws ConfigError, which names `setting`, when the host's name has no address, or when only this
// machine itself can use the address although `is_shared` by several.
void require_usable_address(const std::string& setting, const std::string& host, bool is_shared);

}  // namespace strata::launch
