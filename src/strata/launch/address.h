// Names of machines. Never: opens a connection.
#pragma once

#include <string>

namespace strata::launch {

// Throws ConfigError, which names `setting`, when the host's name has no address.
void require_known_host(const std::string& setting, const std::string& host);

}  // namespace strata::launch
