// A kernel on its stream, for files that see the emulated language and not CUDA's headers.
#pragma once

#include <memory>

struct CUstream_st;

namespace emulated_gpu {

// While it lives, the accesses of instrumented code are those of this kernel (access_hooks.cpp).
class RunningKernel {
 public:
  RunningKernel(const char* name, CUstream_st* stream);
  ~RunningKernel();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace emulated_gpu
