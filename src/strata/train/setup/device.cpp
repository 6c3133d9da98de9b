#include "strata/train/setup/device.h"

#include <cstdlib>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include "strata/base/error.h"
#include "strata/launch/machine_report.h"
#include "strata/launch/plan.h"
#include "strata/libtorch/cuda_build.h"
#include "strata/nn/experts/grouped_product.h"
#include "strata/ops/attention/cudnn_attention_cuda.h"
#include "strata/ops/matmul/matmul.h"
#include "strata/train/setup/unusable_gpus.h"

namespace strata::train {

int count_gpus() {
  if constexpr (!kHasCuda) return 0;
  return at::hasCUDA() ? at::accelerator::deviceCount() : 0;
}

namespace {

// Where CUDA offers none: the machine may have some all the same.
void require_no_unusable_gpus() {
  if constexpr (kHasCuda) {
    const launch::SystemRoots roots;
    // Of what the variable of CUDA lists, nothing where it hides all; and of what is there.
    const int num_listed = launch::inspect_machine({}).num_devices;
    const int num_there = static_cast<int>(launch::read_accelerators(roots).size());
    UnusableGpus gpus = answers_of_cuda();
    gpus.num_present = num_listed > 0 ? num_there : 0;
    gpus.driver = launch::read_driver(roots);
    if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) gpus.visible = visible;
    gpus.names = launch::read_accelerator_ids(roots);
    refuse_unusable(gpus);
  }
}

}  // namespace

at::Device device_of_rank(const config::RunConfig& config, int local_rank) {
  if (config.launch.cpu) return at::kCPU;
  const int gpus = count_gpus();
  if (gpus == 0) {
    require_no_unusable_gpus();
    return at::kCPU;
  }
  return {at::kCUDA, static_cast<c10::DeviceIndex>(local_rank % gpus)};
}

void choose_repeatable_kernels() {
  // Read by cuBLAS when it is first used.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*replace=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Nothing here reads memory that nobody wrote.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

void open_device(const config::RunConfig& config, at::Device device) {
  if (!device.is_cuda()) {
    if (config.train.full_determinism) ops::choose_cpu_products(ops::CpuProducts::kOwn);
    return;
  }
  if (config.train.full_determinism) choose_repeatable_kernels();
  if (config.train.tf32) at::globalContext().setAllowTF32CuBLAS(true);
  at::accelerator::setDeviceIndex(device.index());
  // Makes the allocator, whose statistics are reset before there is a tensor.
  at::globalContext().lazyInitDevice(device.type());
}

std::vector<std::string> refusal_warnings() {
  std::vector<std::string> warnings;
  std::string of_attention;
  if constexpr (kHasCuda) of_attention = ops::cuda::cudnn_refusal();
  if (!of_attention.empty()) {
    warnings.push_back("warning: attention: cuDNN has refused it, FlashAttention was taken: " +
                       of_attention);
  }
  if (const std::string of_experts = nn::grouped_product_refusal(); !of_experts.empty()) {
    warnings.push_back(
        "warning: experts: libtorch has refused their products as one operation, they were made "
        "one by one: " +
        of_experts);
  }
  return warnings;
}

Target target_of(at::Device device) {
  Target target;
  if (!device.is_cuda()) return target;
  return {.device = device, .has_bf16 = true, .has_fp16 = true};
}

}  // namespace strata::train
