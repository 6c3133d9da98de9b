// What the sharding settings mean: the strategy table, and from it the shape of the mesh, the
// schedule's options and the store's. Owns: those rules. Never: ranks, tensors, memory.
#pragma once

#include "strata/comm/mesh.h"
#include "strata/config/run_config.h"
#include "strata/libtorch/cpu_arithmetic.h"
#include "strata/shard/activation_home.h"
#include "strata/shard/schedule.h"
#include "strata/shard/unit_store.h"

namespace strata::train {

// Shard groups are runs of neighbouring ranks. HYBRID strategies keep one inside a machine of
// `local_world_size` ranks unless sizes are given.
// Throws ConfigError when the sizes do not make up the world.
comm::MeshShape mesh_shape(const config::ShardConfig& config, int world_size, int local_world_size);

// The strategy's options: all but offload_activations, which depends on the device.
shard::ScheduleOptions schedule_options(const config::ShardConfig& config);

// What computes.
struct Target {
  at::Device device = at::kCPU;  // meta: everything but values, for the memory plan
  bool has_bf16 = cpu_has_bf16_arithmetic();
  bool has_fp16 = false;  // no kernel of the CPU computes in it
};

// The type of a setting's name: float32, bfloat16 or float16.
at::ScalarType scalar_type_of(const std::string& name);

// Whether homes are stored in host memory where a GPU computes.
bool offloads_to_host(const config::ShardConfig& config);

// Whether values that layers compute with stay between steps although the strategy does not ask for
// it: of whole copies on every rank, where all weights train in fp32 and are converted to 16 bits.
bool keeps_compute_copies(const config::RunConfig& config, const Target& target);

// Where inputs of recomputed layers rest between the passes. ConfigError for files with a GPU.
shard::ActivationHomeOptions::Place activation_place(const config::ShardConfig& config,
                                                     const Target& target);

// Types of arithmetic, of what is gathered and of what is reduced, and the wrap policy.
shard::StoreOptions store_options(const config::ShardConfig& config, const Target& target = {});

shard::WrapPolicy wrap_policy(const config::ShardConfig& config);

}  // namespace strata::train
