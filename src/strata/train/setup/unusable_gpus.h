// GPUs that a machine has and a build with CUDA cannot use: a run on the processors, a hundred
// times slower, is not what was asked for. Owns: the words. Never: a device.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace strata::train {

struct UnusableGpus {
  int num_present = 0;       // as the system's kernel lists them, those that are hidden apart
  std::string driver = {};   // in the kernel's words; empty: unknown
  std::string refusal = {};  // CUDA's; empty: it has none to offer and says nothing
  int cuda_of_driver = 0;    // 12080: 12.8; 0: unknown
  int cuda_of_program = 0;
  // CUDA_VISIBLE_DEVICES; nothing: it is not set. And the GPUs' own names, where the kernel tells
  // them all: GPU-8932f937-...
  std::optional<std::string> visible = {};
  std::vector<std::string> names = {};
};

// Throws ConfigError where there are any.
void refuse_unusable(const UnusableGpus& gpus);

// What CUDA says of itself where it offers no GPU. Only in builds with CUDA.
UnusableGpus answers_of_cuda();

}  // namespace strata::train
