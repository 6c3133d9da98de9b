#include "strata/train/setup/unusable_gpus.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "strata/base/counted.h"
#include "strata/base/error.h"

namespace strata::train {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// The first device that the variable lists, where the machine has none of that number or name: CUDA
// then offers none, whatever follows. Parts of a GPU (MIG-...) are not looked for.
std::string absent_device(const UnusableGpus& gpus) {
  std::string_view id = gpus.visible ? *gpus.visible : std::string_view();
  id = id.substr(0, id.find(','));
  while (id.starts_with(' ')) id.remove_prefix(1);
  while (id.ends_with(' ')) id.remove_suffix(1);
  const bool is_number =
      !id.empty() && std::ranges::all_of(id, [](char c) { return c >= '0' && c <= '9'; });
  if (is_number) {
    int number = 0;
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
    const bool is_there = error == std::errc() && number < gpus.num_present;
    return is_there ? "" : std::string(id);
  }
  // The beginning of a name is enough for CUDA.
  const bool is_known = std::ranges::any_of(
      gpus.names, [&](const std::string& name) { return name.starts_with(id); });
  return id.starts_with("GPU-") && !gpus.names.empty() && !is_known ? std::string(id) : "";
}

}  // namespace

void refuse_unusable(const UnusableGpus& gpus) {
  if (gpus.num_present == 0) return;
  std::string found = counted(gpus.num_present, "NVIDIA GPU");
  if (!gpus.refusal.empty()) found += fmt::format(", of which CUDA says \"{}\"", gpus.refusal);
  if (!gpus.driver.empty()) found += fmt::format(" (driver: {})", gpus.driver);
  const bool is_old = gpus.cuda_of_driver > 0 && gpus.cuda_of_driver < gpus.cuda_of_program &&
                      gpus.cuda_of_driver / 1000 < gpus.cuda_of_program / 1000;
  if (is_old) {
    throw ConfigError(
        "device: found {}, whose driver knows CUDA {}, expected one that knows CUDA {}; update the "
        "driver, or pass --cpu to compute on the CPU",
        found, version_text(gpus.cuda_of_driver), version_text(gpus.cuda_of_program));
  }
  if (const std::string id = absent_device(gpus); !id.empty()) {
    const std::string there =
        gpus.num_present == 1 ? "0" : fmt::format("0 to {}", gpus.num_present - 1);
    throw ConfigError(
        "CUDA_VISIBLE_DEVICES: found \"{}\", whose {} is no GPU of this machine, which has {} "
        "({}{}{}), expected some of them; correct the variable (--gpu_ids sets it), unset it to "
        "use all, or pass --cpu to compute on the CPU",
        *gpus.visible, id, counted(gpus.num_present, "NVIDIA GPU"), there,
        gpus.names.empty() ? "" : "; ", fmt::join(gpus.names, ", "));
  }
  throw ConfigError(
      "device: found {}, and none that can be used, expected one per rank with a driver that knows "
      "CUDA {}; update the driver where it is older, let this process have the GPUs (in a "
      "container: --gpus all), or pass --cpu to compute on the CPU",
      found, version_text(gpus.cuda_of_program));
}

}  // namespace strata::train
