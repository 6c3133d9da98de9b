// Blocks that stay in the first-level cache; plain loops for the compiler to vectorise.
#include "strata/comm/rank_fold.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "strata/base/error.h"
#include "strata/base/float16.h"
#include "strata/base/vectorize.h"

namespace strata::comm {
namespace {

constexpr size_t kBlock = 2048;

// How a stored element becomes the type it is added in, and back.
template <typename T>
struct Plain {
  using Stored = T;
  using Sum = T;
  static Sum load(Stored value) { return value; }
  static Stored store(Sum value) { return value; }
};
struct Bfloat16 {
  using Stored = uint16_t;
  using Sum = float;
  static Sum load(Stored value) { return bf16_to_float(value); }
  static Stored store(Sum value) { return float_to_bf16(value); }
};
struct Float16 {
  using Stored = uint16_t;
  using Sum = float;
  static Sum load(Stored value) { return fp16_to_float(value); }
  static Stored store(Sum value) { return float_to_fp16(value); }
};

struct Add {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};
// A NaN of either side stays, as in the reference's maximum.
struct Max {
  template <typename T>
  static T apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

template <typename Type, typename Operation>
STRATA_INLINE void fold_typed(std::span<const std::byte* const> inputs, std::byte* out,
                              size_t count) {
  using Stored = typename Type::Stored;
  typename Type::Sum sums[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    const auto* first = reinterpret_cast<const Stored*>(inputs[0]) + begin;
    for (size_t i = 0; i < n; ++i) sums[i] = Type::load(first[i]);
    for (size_t r = 1; r < inputs.size(); ++r) {
      const auto* next = reinterpret_cast<const Stored*>(inputs[r]) + begin;
      for (size_t i = 0; i < n; ++i) sums[i] = Operation::apply(sums[i], Type::load(next[i]));
    }
    auto* result = reinterpret_cast<Stored*>(out) + begin;
    for (size_t i = 0; i < n; ++i) result[i] = Type::store(sums[i]);
  }
}

// Gradients: what is worth wide registers. (A template cannot be compiled for several.)
STRATA_VECTORIZED void sum_fp32(std::span<const std::byte* const> inputs, std::byte* out,
                                size_t count) {
  fold_typed<Plain<float>, Add>(inputs, out, count);
}
STRATA_VECTORIZED void sum_bf16(std::span<const std::byte* const> inputs, std::byte* out,
                                size_t count) {
  fold_typed<Bfloat16, Add>(inputs, out, count);
}
STRATA_VECTORIZED void sum_fp16(std::span<const std::byte* const> inputs, std::byte* out,
                                size_t count) {
  fold_typed<Float16, Add>(inputs, out, count);
}

template <typename Operation>
void fold_with(Element element, std::span<const std::byte* const> inputs, std::byte* out,
               size_t count) {
  switch (element) {
    case Element::kFloat64:
      return fold_typed<Plain<double>, Operation>(inputs, out, count);
    case Element::kFloat32:
      return fold_typed<Plain<float>, Operation>(inputs, out, count);
    case Element::kBfloat16:
      return fold_typed<Bfloat16, Operation>(inputs, out, count);
    case Element::kFloat16:
      return fold_typed<Float16, Operation>(inputs, out, count);
    case Element::kInt64:
      return fold_typed<Plain<int64_t>, Operation>(inputs, out, count);
    case Element::kInt32:
      return fold_typed<Plain<int32_t>, Operation>(inputs, out, count);
    case Element::kUint8:
      return fold_typed<Plain<uint8_t>, Operation>(inputs, out, count);
  }
}

}  // namespace

size_t size_of(Element element) {
  switch (element) {
    case Element::kFloat64:
    case Element::kInt64:
      return 8;
    case Element::kFloat32:
    case Element::kInt32:
      return 4;
    case Element::kBfloat16:
    case Element::kFloat16:
      return 2;
    case Element::kUint8:
      return 1;
  }
  throw InternalError("element type: found {}, expected a known one; report this as a bug",
                      static_cast<int>(element));
}

void fold_in_rank_order(Element element, Fold fold, std::span<const std::byte* const> inputs,
                        std::byte* out, size_t count) {
  if (fold == Fold::kSum && element == Element::kFloat32) {
    sum_fp32(inputs, out, count);
  } else if (fold == Fold::kSum && element == Element::kBfloat16) {
    sum_bf16(inputs, out, count);
  } else if (fold == Fold::kSum && element == Element::kFloat16) {
    sum_fp16(inputs, out, count);
  } else if (fold == Fold::kSum) {
    fold_with<Add>(element, inputs, out, count);
  } else {
    fold_with<Max>(element, inputs, out, count);
  }
}

}  // namespace strata::comm
