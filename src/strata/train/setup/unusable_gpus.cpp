#include "strata/train/setup/unusable_gpus.h"

#include "strata/base/counted.h"
#include "strata/base/error.h"

namespace strata::train {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
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
        "driver, or pass --cpu to compute on the processors",
        found, version_text(gpus.cuda_of_driver), version_text(gpus.cuda_of_program));
  }
  throw ConfigError(
      "device: found {}, and none that can be used, expected one a rank with a driver that knows "
      "CUDA {}; update the driver where it is older, let this process have the GPUs (in a "
      "container: --gpus all), or pass --cpu to compute on the processors",
      found, version_text(gpus.cuda_of_program));
}

}  // namespace strata::train
