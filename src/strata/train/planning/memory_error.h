// What a GPU's memory that does not suffice is told as. Owns: which errors mean that, and the
// words: the plan beside what was in use. Never: the plan.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "strata/base/error.h"
#include "strata/train/planning/memory_watch.h"

namespace strata::train {

// Errors of the allocator, and of libraries that find no memory for their workspaces.
bool is_out_of_memory(const c10::Error& error);

// `watch`: rank 0's; null on others. Call it when the run's tensors are gone: their peak is told.
OutOfMemoryError memory_error(const c10::Error& error, at::Device device, const MemoryWatch* watch);

}  // namespace strata::train
