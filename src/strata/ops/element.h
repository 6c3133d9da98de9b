// The storage types of activations as kernels see them: raw memory plus a tag.
// Owns: reading rows as fp32 and writing them back. Never: tensors, so that kernels compile without
// libtorch's heavy headers.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace strata::ops {

// kHalf: kernels of accelerators alone; what reads rows here takes the other two.
enum class Element { kFloat, kBFloat16, kHalf };

constexpr int64_t size_bytes(Element type) { return type == Element::kFloat ? 4 : 2; }

inline const void* at_index(Element type, const void* base, int64_t index) {
  return static_cast<const char*>(base) + index * size_bytes(type);
}
inline void* at_index(Element type, void* base, int64_t index) {
  return static_cast<char*>(base) + index * size_bytes(type);
}

// bf16 <-> fp32, round to nearest even, NaN stays NaN (element_cpu.cpp).
void widen(const uint16_t* from, float* to, int64_t n);
void narrow(const float* from, uint16_t* to, int64_t n);

// `n` elements at `from` as fp32: fp32 memory itself, or bf16 converted into `scratch`.
inline const float* read_row(Element type, const void* from, int64_t n, float* scratch) {
  if (type == Element::kFloat) return static_cast<const float*>(from);
  widen(static_cast<const uint16_t*>(from), scratch, n);
  return scratch;
}

// Copies `n` elements into fp32 memory.
inline void copy_row(Element type, const void* from, int64_t n, float* to) {
  if (type == Element::kFloat) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  } else {
    widen(static_cast<const uint16_t*>(from), to, n);
  }
}

// Where a kernel should write `n` results that end up at `to`: there (fp32) or in `scratch`, which
// finish_row then rounds.
inline float* begin_row(Element type, void* to, float* scratch) {
  return type == Element::kFloat ? static_cast<float*>(to) : scratch;
}
inline void finish_row(Element type, const float* row, int64_t n, void* to) {
  if (type == Element::kBFloat16) narrow(row, static_cast<uint16_t*>(to), n);
}

}  // namespace strata::ops
