#include "strata/train/planning/memory_error.h"

#include <string>
#include <string_view>

#include "strata/memory/device_probe.h"
#include "strata/memory/plan_text.h"

namespace strata::train {
namespace {

// What libtorch says was asked for: the sentence with the size.
std::string wanted_memory(const std::string& message) {
  const size_t found = message.find("Tried to allocate");
  const std::string sentence = message.substr(found == std::string::npos ? 0 : found);
  return sentence.substr(0, sentence.find(". "));
}

}  // namespace

bool is_out_of_memory(const c10::Error& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const std::string_view message = error.what_without_backtrace();
  return message.find("out of memory") != std::string_view::npos ||
         message.find("CUBLAS_STATUS_ALLOC_FAILED") != std::string_view::npos ||
         message.find("CUDNN_STATUS_ALLOC_FAILED") != std::string_view::npos;
}

OutOfMemoryError memory_error(const c10::Error& error, at::Device device,
                              const MemoryWatch* watch) {
  const memory::DeviceMemory found = memory::device_memory(device);
  return OutOfMemoryError(
      "memory of {}: found {} in tensors at most, {} with what the allocator kept and {} free of "
      "{} when more was asked for ({}), expected {}; lower per_device_train_batch_size or "
      "max_length, turn on gradient_checkpointing, quantise the base, or use more ranks",
      device.str(), memory::size_text(found.allocated_peak), memory::size_text(found.reserved_peak),
      memory::size_text(found.free), memory::size_text(found.total),
      wanted_memory(error.what_without_backtrace()),
      watch != nullptr ? "what was planned (" + watch->planned_line() + ")"
                       : "what rank 0 planned");
}

}  // namespace strata::train
