// Headers of GGUF files, and every tensor's bytes.
#include "strata/hf/formats/gguf.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strata::fuzz::expect_answer([&] {
    const strata::fuzz::MemoryFile input(data, size);
    const strata::hf::GgufFile file(input.path());
    uint64_t sum = 0;
    for (const auto& info : file.tensors()) {
      for (const std::byte byte : file.bytes(info)) sum += std::to_integer<uint64_t>(byte);
    }
    for (const auto& [key, value] : file.metadata()) {
      if (file.find(key) != &value) __builtin_trap();
    }
    volatile uint64_t kept = sum;  // so that the bytes are read
    static_cast<void>(kept);
  });
  return 0;
}
