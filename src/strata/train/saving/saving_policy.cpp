#include "strata/train/saving/saving_policy.h"

namespace strata::train {

SavingPolicy saving_policy(const config::RunConfig& config) {
  // What is stored in files is there because memory has no room for it, nor for a copy.
  const bool rests_in_files = config.shard.offload_param_device == config::OffloadDevice::kNvme ||
                              config.shard.offload_optimizer_device == config::OffloadDevice::kNvme;
  return {.saves = config.train.save_strategy != config::Interval::kNo,
          .with_optimizer = !config.train.save_only_model,
          .in_whole_files = config.shard.state_dict_type == config::StateDictType::kFull,
          .in_background = config.train.async_save && !rests_in_files};
}

}  // namespace strata::train
