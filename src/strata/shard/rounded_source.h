// Weights that rest in a wider type than they count in: rounded on the way to their homes. Owns:
// the piece that is rounded at a time. Never: which weights are (the caller's).
#pragma once

#include <c10/core/ScalarType.h>

#include "strata/shard/loading.h"

namespace strata::shard {

// Asks `source` for values of `type` and widens them. Homes of that type are filled as without.
// Memory: one small piece of `type`, beside what the source takes.
Source rounded_source(at::ScalarType type, Source source);

// Elements of `out` that it rounds at a time.
int64_t rounded_at_once(const at::Tensor& out);

}  // namespace strata::shard
