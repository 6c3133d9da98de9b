// Uninitialised fp32 memory that starts at a line of the cache: a vector of 64 bytes that lies in
// two lines is read twice, which takes a tenth of the rate of the products.
// Owns: the memory. Never: what stands in it.
#pragma once

#include <cstdint>
#include <memory>

namespace strata::ops::cpu {

class LineBuffer {
 public:
  LineBuffer() = default;
  explicit LineBuffer(int64_t n) : memory_(new float[static_cast<size_t>(n + kLine)]) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.get());
    const uintptr_t past_line = address % (kLine * sizeof(float)) / sizeof(float);
    begin_ = memory_.get() + (past_line == 0 ? 0 : kLine - past_line);
  }
  float* get() const { return begin_; }

 private:
  static constexpr int64_t kLine = 16;  // floats
  std::unique_ptr<float[]> memory_;
  float* begin_ = nullptr;
};

}  // namespace strata::ops::cpu
