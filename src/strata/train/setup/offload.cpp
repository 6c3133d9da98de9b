#include "strata/train/setup/offload.h"

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/file_queue.h"
#include "strata/base/shared_map.h"
#include "strata/train/setup/strategy.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "strata-offload";

bool is_in_files(config::OffloadDevice device) { return device == config::OffloadDevice::kNvme; }

bool is_in_files(config::ActivationOffloading place) {
  return place == config::ActivationOffloading::kDisk;
}

void check_folder(const std::string& setting, const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw IoError(
        "{}: found no folder {}, expected an existing one on a disk; create it or choose "
        "another",
        setting, folder.string());
  }
  require_writable_folder(folder);
  if (is_in_memory(folder)) {
    throw ConfigError(
        "{}: found {} on a file system in memory (tmpfs), expected a folder on a disk: what is "
        "offloaded there would stay in memory; choose another, or set the device to cpu",
        setting, folder.string());
  }
}

// For folders of what is read and written both by transfers and through a map.
void check_mapped_folder(const std::string& setting, const fs::path& folder) {
  check_folder(setting, folder);
  if (has_writable_maps(folder)) return;
  throw ConfigError(
      "{}: found {} on a file system without shared maps that can be written (such as storage that "
      "FUSE mounts with direct_io), expected a folder on a disk of this machine; choose another, "
      "or set the device to cpu",
      setting, folder.string());
}

std::unique_ptr<ScratchFolder> open_folder(bool is_in_files, const std::string& path) {
  // A plan has no folder.
  if (!is_in_files || path.empty()) return nullptr;
  return std::make_unique<ScratchFolder>(path, kPrefix);
}

}  // namespace

void check_offload_folders(const config::ShardConfig& config) {
  if (is_in_files(config.offload_param_device)) {
    check_mapped_folder("offload_param_nvme_path", config.offload_param_nvme_path);
  }
  if (is_in_files(config.offload_optimizer_device)) {
    check_mapped_folder("offload_optimizer_nvme_path", config.offload_optimizer_nvme_path);
  }
  if (is_in_files(config.activation_offloading)) {
    check_folder("activation_offloading_path", config.activation_offloading_path);
  }
}

OffloadFolders::OffloadFolders(const config::ShardConfig& config)
    : parameters(
          open_folder(is_in_files(config.offload_param_device), config.offload_param_nvme_path)),
      state(open_folder(is_in_files(config.offload_optimizer_device),
                        config.offload_optimizer_nvme_path)),
      activations(open_folder(is_in_files(config.activation_offloading),
                              config.activation_offloading_path)),
      queue_{.block_bytes = static_cast<size_t>(config.aio_block_size),
             .depth = static_cast<int>(config.aio_queue_depth)} {}

shard::FileHomeOptions OffloadFolders::options_of(const ScratchFolder* folder) const {
  if (folder == nullptr) return {};
  return {.folder = folder->path(), .queue = queue_};
}

std::vector<std::string> describe_offload(const config::ShardConfig& config,
                                          const OffloadFolders& folders, at::Device device) {
  std::vector<std::string> lines;
  const bool is_beside_gpu = device.is_cuda() && offloads_to_host(config);
  if (is_beside_gpu) {
    lines.push_back(
        "offload to host memory: parameters, gradients and optimizer state are kept there "
        "(pinned), and the CPU updates them");
  }
  const bool wants_host = config.offload_params ||
                          config.offload_param_device == config::OffloadDevice::kCpu ||
                          config.offload_optimizer_device == config::OffloadDevice::kCpu;
  if (wants_host && !is_beside_gpu) {
    lines.push_back("offload to host memory: this run computes on the CPU, whose memory that is");
  }
  if (config.activation_offloading == config::ActivationOffloading::kTrue) {
    lines.push_back(
        device.is_cuda()
            ? "activation_offloading: inputs of layers are kept in host memory (pinned) until "
              "their backward pass"
            : "activation_offloading: this run computes on the CPU, so inputs of layers are in "
              "host memory already; with disk they would be kept in files");
  }
  const auto in_files = [&](const char* what, const ScratchFolder* folder) {
    if (folder == nullptr) return;
    // Users of a container learn here that it refuses io_uring.
    lines.push_back(fmt::format("offload: {} in files in {} ({})", what,
                                folder->path().parent_path().string(), FileQueue::open()->name()));
    if (folder->num_removed() == 0) return;
    lines.push_back(fmt::format("offload: removed {} folder{} of runs that were killed",
                                folder->num_removed(), folder->num_removed() == 1 ? "" : "s"));
  };
  in_files("parameters rest", folders.parameters.get());
  in_files("optimizer state rests", folders.state.get());
  in_files("inputs of layers rest", folders.activations.get());
  return lines;
}

}  // namespace strata::train
