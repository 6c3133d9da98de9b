#include "strata/train/loop/step_profile.h"

#include <ATen/DeviceAccelerator.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "strata/base/error.h"

namespace strata::train {
namespace {

namespace profiler = torch::autograd::profiler;

// On a GPU its own activity alone: noting every operation would widen the gaps that are looked for.
std::set<profiler::ActivityType> activities_of(c10::Device device) {
  return {device.is_cuda() ? profiler::ActivityType::CUDA : profiler::ActivityType::CPU};
}

void finish_work(c10::Device device) {
  if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
}

}  // namespace

StepProfile::StepProfile(c10::Device device) : device_(device) {
  finish_work(device);
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities_of(device));
  profiler::enableProfiler(config, activities_of(device));
}

StepProfile::~StepProfile() {
  if (!is_running_) return;
  try {
    profiler::disableProfiler();
  } catch (const std::exception&) {
    // The step has failed before; its error counts.
  }
}

void StepProfile::finish(const std::filesystem::path& file) {
  finish_work(device_);
  is_running_ = false;
  profiler::disableProfiler()->save(file.string());
  if (!std::filesystem::exists(file)) {
    throw IoError("{}: found no trace of the step, expected it to be written", file.string());
  }
}

}  // namespace strata::train
