// How test programs that use libtorch end. Never: what they do before.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "strata/base/sanitized.h"
#include "strata/libtorch/cuda_build.h"

namespace strata {

// Without taking libtorch's globals down: for a small model that takes longer than all else, most
// of all in a forked process, which copies every page of them first. A sanitizer looks for leaks
// then, and devices write their profiles.
[[noreturn]] inline void leave(int exit_code) {
  if (STRATA_SANITIZED || kHasCuda) std::exit(exit_code);
  std::fflush(nullptr);
  ::_exit(exit_code);
}

}  // namespace strata
