// What a rank computes on: the CPU, or the GPU that its place on the machine gives it. Owns: that
// choice and what must be set once for it. Never: memory.
#pragma once

#include <string>

#include "strata/config/run_config.h"
#include "strata/launch/environment.h"
#include "strata/train/setup/strategy.h"

namespace strata::train {

// The GPUs that this build can use on this machine; 0 in builds without CUDA.
int count_gpus();

// cuda:K for the rank's place K on its machine, the CPU with use_cpu or where there is no GPU.
// Several ranks share a GPU when there are more ranks than GPUs. Throws ConfigError where the
// machine has GPUs, none of them hidden by CUDA_VISIBLE_DEVICES, and CUDA can use none.
at::Device device_of_rank(const config::RunConfig& config, int local_rank);

// Makes the device the current one, and its arithmetic repeatable with full_determinism. Call once,
// before tensors exist on it.
void open_device(const config::RunConfig& config, at::Device device);

// libtorch takes kernels of a GPU that give the same bits every time, from now on in this process;
// a plan counts what those take.
void choose_repeatable_kernels();

// What was asked of the device in this process and refused, a line each.
std::vector<std::string> refusal_warnings();

// The types that it computes in.
Target target_of(at::Device device);

}  // namespace strata::train
