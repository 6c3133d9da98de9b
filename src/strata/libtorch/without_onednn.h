// libtorch's own kernels where it would call oneDNN. Never: products, which are
// ops/matmul's (libtorch's of bf16 are plain loops without it).
#pragma once

#include <ATen/Context.h>

namespace strata {

// oneDNN compiles and keeps code for every shape of tensor that it ever saw (GELU's of each length
// of rows) and reads megabytes of its own code first: memory of which no plan can know. Call before
// anything is computed.
inline void leave_onednn_out() {
  [[maybe_unused]] static const bool is_out = [] {
    at::globalContext().setUserEnabledMkldnn(false);
    return true;
  }();
}

}  // namespace strata
