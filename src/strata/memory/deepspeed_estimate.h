// DeepSpeed's own estimates of ZeRO's model states, for people who compare. Owns: its formulas,
// copied exactly. Never: this program's memory; memory/plan.h has that.
// Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py (estimate_zero2_* and
// estimate_zero3_model_states_mem_needs). They leave out activations, buckets and the CUDA context.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strata::memory {

struct DeepSpeedCase {
  int64_t num_parameters;
  int64_t largest_layer;  // parameters of the largest single module; ZeRO-3 only
  int gpus_per_node = 1;
  int nodes = 1;
};

// Bytes of one node's host memory and of one GPU.
struct DeepSpeedNeeds {
  double cpu_bytes;
  double gpu_bytes;
};

DeepSpeedNeeds estimate_zero2(const DeepSpeedCase& c, bool offload_optimizer);
// `zero_init`: parameters are sharded while the model is made. offload_parameters implies
// offload_optimizer.
DeepSpeedNeeds estimate_zero3(const DeepSpeedCase& c, bool offload_optimizer,
                              bool offload_parameters, bool zero_init);

// All of them as a table, in GiB.
std::string deepspeed_table(const DeepSpeedCase& c);

}  // namespace strata::memory
