#include "strata/train/setup/gpu_sharing.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/counted.h"

namespace strata::train {
namespace {

constexpr size_t kNamedGpus = 8;
// As many digits as the name begins with in nvidia-smi -L.
constexpr size_t kShownDigits = 8;

}  // namespace

int count_sharers(const std::vector<std::string>& gpus, int rank) {
  return static_cast<int>(std::ranges::count(gpus, gpus[static_cast<size_t>(rank)]));
}

std::optional<std::string> sharing_warning(const std::vector<std::string>& gpus) {
  std::map<std::string, std::vector<size_t>> ranks_of;
  for (size_t rank = 0; rank < gpus.size(); ++rank) ranks_of[gpus[rank]].push_back(rank);
  std::vector<std::pair<std::vector<size_t>, std::string>> shared;
  for (const auto& [gpu, ranks] : ranks_of) {
    if (ranks.size() > 1) shared.emplace_back(ranks, gpu);
  }
  if (shared.empty()) return std::nullopt;
  std::ranges::sort(shared);
  std::vector<std::string> told;
  for (const auto& [ranks, gpu] : shared) {
    if (told.size() == kNamedGpus) {
      told.push_back(fmt::format("{} more", shared.size() - kNamedGpus));
      break;
    }
    told.push_back(
        fmt::format("ranks {} on GPU-{}", fmt::join(ranks, ", "), gpu.substr(0, kShownDigits)));
  }
  return fmt::format(
      "warning: GPUs: found {}, expected a GPU for each of {} ranks; those that share one exchange "
      "through host memory, which is slow: start as many ranks as there are GPUs ({}), or let the "
      "ranks see more (CUDA_VISIBLE_DEVICES)",
      fmt::join(told, "; "), gpus.size(), ranks_of.size());
}

}  // namespace strata::train
