#include "strata/hf/export_index.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "strata/base/error.h"
#include "strata/base/json.h"

namespace strata::hf {
namespace {

struct Unit {
  std::string_view name;  // lower case
  double bytes;
};

constexpr std::array<Unit, 11> kUnits = {{{"", 1},
                                          {"b", 1},
                                          {"kb", 1e3},
                                          {"mb", 1e6},
                                          {"gb", 1e9},
                                          {"tb", 1e12},
                                          {"kib", 0x1p10},
                                          {"mib", 0x1p20},
                                          {"gib", 0x1p30},
                                          {"tib", 0x1p40},
                                          {"pib", 0x1p50}}};

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) {
    text.remove_prefix(1);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) {
    text.remove_suffix(1);
  }
  return text;
}

std::string shard_name(size_t index, size_t count) {
  if (count == 1) return kModelWeightsFile;
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

}  // namespace

uint64_t parse_size(std::string_view text) {
  const std::string_view trimmed = trim(text);
  double value = 0;
  const auto number = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), value,
                                      std::chars_format::fixed);
  std::string unit;
  if (number.ec == std::errc()) {
    const auto used = static_cast<size_t>(number.ptr - trimmed.data());
    for (const char c : trim(trimmed.substr(used))) {
      unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    for (const Unit& known : kUnits) {
      const double bytes = std::floor(value * known.bytes);
      if (known.name == unit && bytes >= 1 && bytes < 0x1p63) return static_cast<uint64_t>(bytes);
    }
  }
  throw ConfigError(
      "size: found \"{}\", expected a positive number with KB, MB, GB, TB, KiB, MiB, GiB "
      "or TiB; write it like 50GB",
      text);
}

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
