// Memory whose neighbours cannot be touched: a kernel that reads or writes beside a tensor ends the
// program at that instruction, in any instruction set (sanitizers do not see loads of tiles).
#pragma once

#include <string_view>

namespace strata::ops {

// Every tensor on the CPU gets pages of its own from now on, filled with NaN, and a page without
// rights "behind" its last byte or "before" its first one. False: `side` is neither.
bool guard_memory(std::string_view side);

}  // namespace strata::ops
