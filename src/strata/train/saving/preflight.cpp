#include "strata/train/saving/preflight.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <set>

#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/export.h"
#include "strata/checkpoint/state_pieces.h"
#include "strata/launch/machine_report.h"
#include "strata/memory/plan_text.h"
#include "strata/shard/segments.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

std::string readable(uint64_t bytes) { return memory::size_text(static_cast<int64_t>(bytes)); }

// A tensor in a header of safetensors, in a manifest and in an index.
constexpr uint64_t kRecordBytes = 512;

}  // namespace

uint64_t id_of(const std::string& text) {
  return (std::hash<std::string>{}(text) & ((uint64_t{1} << 48) - 1)) | 1;
}

void require_shared_folder(const fs::path& folder, int rank, const std::string& owner) {
  const fs::path lock = folder / ".lock";
  // A machine answers for a folder of a file server from what it saw there some seconds before; a
  // file that it makes itself brings that up to date.
  if (fs::is_directory(folder)) require_writable_folder(folder);
  if (!fs::exists(lock) || read_file(lock) != owner) {
    throw IoError(
        "output_dir: rank {} found nothing of what rank 0 wrote to {}, expected one folder that "
        "all "
        "ranks share; choose a folder on a shared file system",
        rank, folder.string());
  }
}

void require_disk_space(const fs::path& folder, const SavePlan& plan) {
  const uint64_t needed =
      plan.checkpoint_bytes * static_cast<uint64_t>(plan.num_checkpoints) + plan.result_bytes;
  const uint64_t found = available_bytes(folder);
  if (found >= needed) return;
  std::vector<std::string> parts;
  if (plan.num_checkpoints > 0) {
    parts.push_back(fmt::format("{} checkpoint{} of {}", plan.num_checkpoints,
                                plan.num_checkpoints == 1 ? "" : "s",
                                readable(plan.checkpoint_bytes)));
  }
  if (plan.result_bytes > 0) {
    parts.push_back(fmt::format("the result of {}", readable(plan.result_bytes)));
  }
  throw IoError(
      "output_dir: found {} free in {}, expected {} for {}; free space{} or choose another folder",
      readable(found), folder.string(), readable(needed), fmt::join(parts, " and "),
      plan.num_checkpoints > 0 ? ", set save_total_limit, save less often" : "");
}

std::optional<std::string> shortage_for_stop(const fs::path& folder, const SavePlan& plan) {
  const auto before = static_cast<uint64_t>(std::max<int64_t>(plan.num_checkpoints - 1, 0));
  const uint64_t needed = plan.checkpoint_bytes * before + plan.stop_bytes;
  const uint64_t found = available_bytes(folder);
  if (found >= needed) return std::nullopt;
  return fmt::format(
      "warning: output_dir: found {} free in {}, expected {} for the checkpoint of a request to "
      "stop ({} with the optimizer's state); without it what was trained by then is lost",
      readable(found), folder.string(), readable(needed), readable(plan.stop_bytes));
}

std::optional<std::string> file_size_warning(uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= bytes) return std::nullopt;
  return fmt::format(
      "warning: output_dir: found a limit of {} a file (ulimit -f), expected {} for the largest "
      "that a save or the result may write; raise it, or what was trained cannot be saved",
      readable(limit.rlim_cur), readable(bytes));
}

uint64_t checkpoint_bytes(Trainee& trainee, bool with_optimizer,
                          const checkpoint::FrozenWeights& frozen) {
  // The ranks of a shard group hold parts that tile the whole.
  comm::Group& shard = *trainee.store->mesh().shard;
  uint64_t own = 0;
  for (const auto& pieces :
       {checkpoint::local_pieces(*trainee.store,
                                 with_optimizer ? trainee.optimizer.get() : nullptr),
        checkpoint::frozen_pieces(*trainee.store, frozen)}) {
    own += checkpoint::size_bytes(pieces) + pieces.size() * kRecordBytes;
  }
  at::Tensor total = at::full({1}, static_cast<double>(own), at::kDouble);
  shard.all_reduce(total)->wait();
  return static_cast<uint64_t>(total.item<double>());
}

uint64_t result_bytes(const Trainee& trainee, std::optional<at::ScalarType> type) {
  const auto bytes_of = [type](const nn::Parameter& parameter) {
    const size_t element = c10::elementSize(checkpoint::written_type(parameter, type));
    return static_cast<uint64_t>(parameter.numel()) * element + kRecordBytes;
  };
  uint64_t bytes = 0;
  if (!trainee.adapter) {
    for (const nn::Parameter* parameter : trainee.model->parameters())
      bytes += bytes_of(*parameter);
    return bytes;
  }
  for (const adapters::AdapterTensor& tensor : trainee.adapter->tensors()) {
    bytes += bytes_of(*tensor.parameter);
  }
  for (const adapters::FixedTensor& fixed : trainee.adapter->fixed_tensors()) {
    bytes += fixed.tensor->nbytes() + kRecordBytes;
  }
  // The file holds the rows that these make, which are fewer than their weights.
  for (const nn::Parameter* parameter : trainee.adapter->inner_parameters()) {
    bytes += bytes_of(*parameter);
  }
  return bytes;
}

uint64_t result_memory_bytes(const Trainee& trainee) {
  std::set<const nn::Parameter*> wanted;
  if (trainee.adapter) {
    for (const auto& tensor : trainee.adapter->tensors()) wanted.insert(tensor.parameter);
  }
  const bool on_host = trainee.store->options().device.is_cpu();
  uint64_t most = 0;
  for (const shard::SegmentPlace& place : shard::segments_of(*trainee.store)) {
    const uint64_t element = c10::elementSize(place.layout->storage);
    for (const shard::Extent& extent : place.layout->extents) {
      if (trainee.adapter && !wanted.contains(extent.parameter)) continue;
      // With a GPU the segment is gathered there, and comes to the host tensor by tensor.
      const int64_t count = on_host ? place.layout->numel : extent.parameter->numel();
      most = std::max(most, static_cast<uint64_t>(count) * element);
    }
  }
  return most;
}

CopyMemory copy_memory(uint64_t copy_bytes) {
  const launch::MemoryFacts facts = launch::read_memory({});
  CopyMemory memory{.copy_bytes = copy_bytes, .machine_bytes = facts.available_bytes};
  // Containers of one machine have one boot.
  memory.machine_id = id_of(read_file("/proc/sys/kernel/random/boot_id"));
  if (facts.room_folder.empty()) return memory;
  memory.container_bytes = facts.room_bytes;
  // Paths look alike from inside of two containers; the folders are two.
  struct stat status {};
  ::stat(facts.room_folder.c_str(), &status);
  memory.container_id = id_of(fmt::format("{}:{}", status.st_dev, status.st_ino));
  return memory;
}

std::optional<std::string> find_shortage(const std::vector<CopyMemory>& ranks,
                                         const std::string& for_one,
                                         const std::string& for_several) {
  struct Pool {
    const char* name;
    uint64_t CopyMemory::*id;
    uint64_t CopyMemory::*bytes;
  };
  for (const Pool& pool :
       {Pool{"container", &CopyMemory::container_id, &CopyMemory::container_bytes},
        Pool{"machine", &CopyMemory::machine_id, &CopyMemory::machine_bytes}}) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      const CopyMemory& one = ranks[i];
      const bool is_known = std::string_view(pool.name) == "container" ? one.container_id != 0
                                                                       : one.machine_bytes != 0;
      if (!is_known) continue;
      uint64_t needed = 0, found = one.*pool.bytes;
      int sharing = 0;
      for (const CopyMemory& other : ranks) {
        if (other.*pool.id != one.*pool.id) continue;
        needed += other.copy_bytes;
        found = std::min(found, other.*pool.bytes);
        ++sharing;
      }
      if (needed <= found) continue;
      return fmt::format("{} free in the {} of rank {}, expected {} for the {} of its {} rank{}",
                         readable(found), pool.name, i, readable(needed),
                         sharing == 1 ? for_one : for_several, sharing, sharing == 1 ? "" : "s");
    }
  }
  return std::nullopt;
}

std::vector<CopyMemory> gather_copy_memory(const CopyMemory& own, comm::Group& world) {
  // As doubles, which hold ids of 48 bits and bytes below 2^53 exactly; the sum of one value and
  // zeros is the value.
  constexpr int64_t kFields = 5;
  at::Tensor table = at::zeros({world.size(), kFields}, at::kDouble);
  auto* row = table.mutable_data_ptr<double>() + world.rank() * kFields;
  row[0] = static_cast<double>(own.copy_bytes);
  row[1] = static_cast<double>(own.machine_id);
  row[2] = static_cast<double>(own.machine_bytes);
  row[3] = static_cast<double>(own.container_id);
  row[4] = static_cast<double>(own.container_bytes);
  world.all_reduce(table)->wait();
  std::vector<CopyMemory> ranks;
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto* found = table.const_data_ptr<double>() + rank * kFields;
    const auto value = [&](int i) { return static_cast<uint64_t>(found[i]); };
    ranks.push_back({value(0), value(1), value(2), value(3), value(4)});
  }
  return ranks;
}

}  // namespace strata::train
