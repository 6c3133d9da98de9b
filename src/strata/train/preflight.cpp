#include "strata/train/preflight.h"

#include <unistd.h>

#include <charconv>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/state_pieces.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

std::string readable(uint64_t bytes) {
  if (bytes < 1'000'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

}  // namespace

void require_shared_folder(const fs::path& folder, int rank) {
  if (!fs::exists(folder / ".lock")) {
    throw IoError(
        "output_dir: rank {} found nothing of what rank 0 wrote to {}, expected one folder that "
        "all "
        "ranks share; choose a folder on a shared file system",
        rank, folder.string());
  }
  require_writable_folder(folder);
}

void require_disk_space(const fs::path& folder, const SavePlan& plan) {
  const uint64_t needed =
      plan.checkpoint_bytes * static_cast<uint64_t>(plan.num_checkpoints) + plan.result_bytes;
  const uint64_t found = available_bytes(folder);
  if (found >= needed) return;
  throw IoError(
      "output_dir: found {} free in {}, expected {} for {} checkpoint{} of {} and the result of "
      "{}; "
      "free space, set save_total_limit or save less often",
      readable(found), folder.string(), readable(needed), plan.num_checkpoints,
      plan.num_checkpoints == 1 ? "" : "s", readable(plan.checkpoint_bytes),
      readable(plan.result_bytes));
}

uint64_t checkpoint_bytes(Trainee& trainee, bool with_optimizer,
                          const checkpoint::FrozenWeights& frozen) {
  // The ranks of a shard group hold parts that tile the whole.
  comm::Group& shard = *trainee.store->mesh().shard;
  const uint64_t own = checkpoint::size_bytes(checkpoint::local_pieces(
                           *trainee.store, with_optimizer ? trainee.optimizer.get() : nullptr)) +
                       checkpoint::size_bytes(checkpoint::frozen_pieces(*trainee.store, frozen));
  at::Tensor total = at::full({1}, static_cast<double>(own), at::kDouble);
  shard.all_reduce(total)->wait();
  return static_cast<uint64_t>(total.item<double>());
}

uint64_t result_bytes(const Trainee& trainee) {
  uint64_t bytes = 0;
  for (const nn::Parameter* parameter : trainee.model->parameters()) {
    if (trainee.adapter && !parameter->requires_grad()) continue;
    bytes +=
        static_cast<uint64_t>(parameter->numel()) * c10::elementSize(parameter->storage_type());
  }
  return bytes;
}

uint64_t available_memory_bytes() {
  const std::string text = read_file("/proc/meminfo");
  constexpr std::string_view kKey = "MemAvailable:";
  const size_t at = text.find(kKey);
  if (at == std::string::npos) return 0;
  const size_t digits = text.find_first_of("0123456789", at);
  uint64_t kilobytes = 0;
  std::from_chars(text.data() + std::min(digits, text.size()), text.data() + text.size(),
                  kilobytes);
  return kilobytes * 1024;
}

}  // namespace strata::train
