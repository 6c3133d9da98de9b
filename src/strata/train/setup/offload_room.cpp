#include "strata/train/setup/offload_room.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/comm/agreement.h"
#include "strata/memory/plan_text.h"
#include "strata/train/saving/preflight.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kKinds = 3;

// One of the things that may rest in files.
struct Kind {
  const char* setting;
  const char* name;
  std::string folder;
  uint64_t bytes;  // of this rank
};

std::array<Kind, kKinds> kinds_of(const config::ShardConfig& config, const OffloadBytes& own) {
  return {
      Kind{"offload_param_nvme_path", "parameters", config.offload_param_nvme_path, own.parameters},
      Kind{"offload_optimizer_nvme_path", "optimizer state", config.offload_optimizer_nvme_path,
           own.state},
      Kind{"activation_offloading_path", "inputs of layers", config.activation_offloading_path,
           own.activations}};
}

// Of one kind on one rank, as doubles, which hold all three exactly.
struct Demand {
  double bytes = 0;
  double file_system = 0;  // of this machine; 0: nothing of this kind
  double available = 0;
};
using Demands = std::array<Demand, kKinds>;

Demand demand_of(const Kind& kind) {
  if (kind.bytes == 0) return {};
  struct stat status {};
  if (::stat(kind.folder.c_str(), &status) != 0) {
    throw IoError("{}: found {} when looking at {}, expected a folder; check the path",
                  kind.setting, errno_text(errno), kind.folder);
  }
  const std::string name =
      fmt::format("{}:{}", read_file("/proc/sys/kernel/random/boot_id"), status.st_dev);
  return {static_cast<double>(kind.bytes), static_cast<double>(id_of(name)),
          static_cast<double>(available_bytes(kind.folder))};
}

// The demands of all ranks, in rank order. Collective.
std::vector<Demands> gather_demands(const Demands& own, comm::Group& world) {
  static_assert(sizeof(Demands) == 3 * kKinds * sizeof(double));
  std::vector<Demands> all(static_cast<size_t>(world.size()));
  at::Tensor table = at::zeros({world.size(), static_cast<int64_t>(3 * kKinds)}, at::kDouble);
  auto* rows = table.mutable_data_ptr<double>();
  std::memcpy(rows + static_cast<size_t>(world.rank()) * 3 * kKinds, &own, sizeof(own));
  // The sum of one value and zeros is the value.
  world.all_reduce(table)->wait();
  std::memcpy(static_cast<void*>(all.data()), rows, all.size() * sizeof(Demands));
  return all;
}

// What all ranks ask of one file system.
struct Pool {
  std::array<double, kKinds> bytes{};
  double available = std::numeric_limits<double>::infinity();
  std::set<size_t> ranks;
};

std::string readable(double bytes) { return memory::size_text(static_cast<int64_t>(bytes)); }

void require_room(const Pool& pool, const std::array<Kind, kKinds>& kinds) {
  double needed = 0;
  const Kind* first = nullptr;
  std::vector<std::string> parts;
  for (size_t k = 0; k < kKinds; ++k) {
    if (pool.bytes[k] == 0) continue;
    needed += pool.bytes[k];
    if (first == nullptr) first = &kinds[k];
    parts.push_back(fmt::format("{} {}", kinds[k].name, readable(pool.bytes[k])));
  }
  if (needed <= pool.available) return;
  throw IoError(
      "{}: found {} free in {}, expected {} ({}) for {} rank{}; free space there or choose another "
      "folder",
      first->setting, readable(pool.available), first->folder, readable(needed),
      fmt::join(parts, ", "), pool.ranks.size(), pool.ranks.size() == 1 ? "" : "s");
}

}  // namespace

void require_offload_room(const config::ShardConfig& config, const OffloadBytes& own,
                          comm::Group& world) {
  const std::array<Kind, kKinds> kinds = kinds_of(config, own);
  Demands demands;
  comm::all_or_nothing(world, "looking at the room for what is offloaded",
                       [&] { std::ranges::transform(kinds, demands.begin(), demand_of); });
  const std::vector<Demands> all = gather_demands(demands, world);
  std::map<double, Pool> pools;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (size_t k = 0; k < kKinds; ++k) {
      const Demand& demand = all[rank][k];
      if (demand.bytes == 0) continue;
      Pool& pool = pools[demand.file_system];
      pool.bytes[k] += demand.bytes;
      pool.available = std::min(pool.available, demand.available);
      pool.ranks.insert(rank);
    }
  }
  for (const auto& [file_system, pool] : pools) require_room(pool, kinds);
}

}  // namespace strata::train
