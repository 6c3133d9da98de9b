// The vector functions of MKL, which libtorch's cos, exp, log and tanh are on the CPU. Never: which
// of them is called.
#pragma once

#include <ATen/ATen.h>

namespace strata {

// MKL chooses its code at the first call. Where two threads make that one at once, one of them may
// compute less exactly: one half of a cosine 1.5e-4 off, in every fortieth process of a busy
// machine. A call by one thread alone decides for all. Call before anything is computed.
inline void open_vector_math() {
  [[maybe_unused]] static const bool is_open = at::cos(at::ones({1})).defined();
}

}  // namespace strata
