// What one step spends its time on, as a trace for chrome://tracing or Perfetto: kernels of the GPU
// and the gaps between them, or operations of libtorch on the CPU. Owns: libtorch's profiler while
// it runs. Never: sums; bench/gpu/breakdown.py makes those.
#pragma once

#include <filesystem>

#include <c10/core/Device.h>

namespace strata::train {

// Profiles the calling thread and the device from construction to finish(). One at a time.
class StepProfile {
 public:
  explicit StepProfile(c10::Device device);
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  // Waits for the device and writes the trace. IoError when it cannot be written.
  void finish(const std::filesystem::path& file);

 private:
  c10::Device device_;
  bool is_running_ = true;
};

}  // namespace strata::train
