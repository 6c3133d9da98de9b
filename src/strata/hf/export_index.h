// Which tensor of a full export goes into which shard file, and the index that says so.
// Source: huggingface_hub's split_torch_state_dict_into_shards, transformers' save_pretrained.
// Never: writing of tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace strata::hf {

inline constexpr const char* kModelWeightsFile = "model.safetensors";
inline constexpr const char* kModelIndexFile = "model.safetensors.index.json";

struct TensorBytes {
  std::string name;
  uint64_t size_bytes;
};

struct Shard {
  std::string file;
  std::vector<std::string> tensors;  // in the order given
  uint64_t size_bytes = 0;
};

struct ShardPlan {
  std::vector<Shard> shards;
  uint64_t total_size = 0;  // bytes

  // A single shard is `model.safetensors` and has no index.
  bool is_indexed() const { return shards.size() > 1; }
  // The text of model.safetensors.index.json, with its final newline.
  std::string index_json(uint64_t total_parameters) const;
};

// `tensors` in model order. A tensor larger than `max_shard_size` gets a shard of its own.
// Requires: at least one tensor, max_shard_size > 0.
ShardPlan plan_shards(std::span<const TensorBytes> tensors, uint64_t max_shard_size);

}  // namespace strata::hf
