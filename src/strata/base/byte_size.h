// Sizes as people write them. Never: anything else with units.
#pragma once

#include <cstdint>
#include <string_view>

namespace strata {

// "50GB", "5 MB" (decimal), "5GiB" (binary), "1.5GB", or plain bytes "1000"; units in any case.
// Errors: ConfigError for anything else, for less than one byte and for 2^63 or more.
uint64_t parse_byte_size(std::string_view text);

// The same for the memory of a rank: a number under a million without a unit ("80") is an error,
// because nobody means bytes by it.
uint64_t parse_memory_size(std::string_view text);

}  // namespace strata
