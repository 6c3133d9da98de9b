// Headers of safetensors files, and every tensor's bytes.
#include "strata/hf/formats/safetensors.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strata::fuzz::expect_answer([&] {
    const strata::fuzz::MemoryFile input(data, size);
    const strata::hf::SafetensorsFile file(input.path());
    uint64_t sum = 0;
    for (const auto& tensor : file.tensors()) {
      for (const std::byte byte : file.bytes(tensor)) sum += std::to_integer<uint64_t>(byte);
      if (tensor.size_bytes() != static_cast<uint64_t>(tensor.numel()) * size_of(tensor.dtype)) {
        __builtin_trap();
      }
    }
    volatile uint64_t kept = sum;  // so that the bytes are read
    static_cast<void>(kept);
  });
  return 0;
}
