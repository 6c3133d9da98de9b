#include "strata/hf/export_index.h"

#include "strata/base/error.h"
#include "strata/base/json.h"

namespace strata::hf {
namespace {

std::string shard_name(size_t index, size_t count) {
  if (count == 1) return kModelWeightsFile;
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

}  // namespace

ShardPlan plan_shards(std::span<const TensorBytes> tensors, uint64_t max_shard_size) {
  if (tensors.empty() || max_shard_size == 0) {
    throw InternalError(
        "shard plan: found {} tensors and a limit of {} bytes, expected some of both",
        tensors.size(), max_shard_size);
  }
  ShardPlan plan;
  Shard current;
  for (const TensorBytes& tensor : tensors) {
    plan.total_size += tensor.size_bytes;
    if (tensor.size_bytes > max_shard_size) {
      // As the reference: the shard being filled stays open and comes after this one.
      plan.shards.push_back({"", {tensor.name}, tensor.size_bytes});
      continue;
    }
    if (current.size_bytes + tensor.size_bytes > max_shard_size) {
      plan.shards.push_back(std::move(current));
      current = {};
    }
    current.tensors.push_back(tensor.name);
    current.size_bytes += tensor.size_bytes;
  }
  if (!current.tensors.empty()) plan.shards.push_back(std::move(current));
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    plan.shards[i].file = shard_name(i, plan.shards.size());
  }
  return plan;
}

std::string ShardPlan::index_json(uint64_t total_parameters) const {
  Json weight_map = Json::object();
  auto& entries = weight_map.get_ref<Json::object_t&>();
  for (const Shard& shard : shards) {
    for (const std::string& tensor : shard.tensors) {
      // Appended below the ordered map, whose own insertion looks through all keys.
      entries.Json::object_t::Container::emplace_back(tensor, shard.file);
    }
  }
  Json index;
  index["metadata"] = {{"total_parameters", total_parameters}, {"total_size", total_size}};
  index["weight_map"] = std::move(weight_map);
  return dump_python(index) + "\n";
}

}  // namespace strata::hf
