// Quantising on the CPU: which instruction set, which threads, and the short block at the end.
// Never: checks, double quantisation.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "strata/ops/quant/kernels.h"
#include "strata/ops/quant/quantize_loops.h"

namespace strata::ops::quant::cpu {
namespace {

// Plain loops for processors without a kernel of their own.
struct OneLane {
  static constexpr int64_t kLanes = 1;
  using Floats = float;
  using Ints = uint32_t;

  static Floats broadcast(float x) { return x; }
  static Floats multiply(Floats a, Floats b) { return a * b; }
  static Floats widen(const HalfBits* x) { return to_float(*x); }
  template <typename Stored>
  static void load_pairs(const Stored* x, Floats& even, Floats& odd) {
    even = load<OneLane>(x);
    odd = load<OneLane>(x + 1);
  }
  static Ints magnitude(Floats x) { return float_bits(x) & 0x7FFFFFFFu; }
  static Ints larger(Ints a, Ints b) { return std::max(a, b); }
  static uint32_t largest(Ints x) { return x; }
  static Floats halved(Floats x) { return fp16_to_float(float_to_fp16(x)); }
  static void store_bytes(Floats x, int8_t* to) {
    const float rounded = std::nearbyint(x);
    *to = static_cast<int8_t>(rounded >= -128 && rounded <= 127 ? rounded : 0.0f);
  }
  static void store_nibbles(Ints high, Ints low, uint8_t* to) {
    *to = static_cast<uint8_t>(high << 4 | low);
  }

  class Search {
   public:
    explicit Search(const Borders& table) : table_(table) {}
    template <bool kIsOrdinary>
    Ints find(Floats x) const {
      return code_among(table_, x);
    }

   private:
    const Borders& table_;
  };
};

// Fewer elements than a block: the reference divides them, and codes a zero after an odd number.
template <typename Stored>
void quantize_short_block(Kind kind, const Stored* x, int64_t n, uint8_t* codes, float* scale) {
  const Borders& table = borders_of(kind);
  const float divisor = divisor_of(largest_magnitude<OneLane>(x, n));
  *scale = divisor;
  const auto code_at = [&](int64_t i) {
    return code_among(table, i < n ? to_float(x[i]) / divisor : 0.0f);
  };
  for (int64_t i = 0; i < n; i += 2) {
    OneLane::store_nibbles(code_at(i), code_at(i + 1), codes + i / 2);
  }
}

void quantize_short_block(const Blocks& b, int64_t n) {
  switch (b.type) {
    case Element::kFloat:
      return quantize_short_block(b.kind, static_cast<const float*>(b.x), n, b.codes, b.scales);
    case Element::kBFloat16:
      return quantize_short_block(b.kind, static_cast<const BFloat16Bits*>(b.x), n, b.codes,
                                  b.scales);
    case Element::kHalf:
      return quantize_short_block(b.kind, static_cast<const HalfBits*>(b.x), n, b.codes, b.scales);
  }
}

void quantize_whole_blocks(InstructionSet set, const Blocks& blocks) {
  if constexpr (kHasX86Kernels) {
    if (set == InstructionSet::kAvx512) return quantize_blocks_avx512(blocks);
    if (set == InstructionSet::kAvx2) return quantize_blocks_avx2(blocks);
  }
  quantize_blocks_of_any_type<OneLane>(blocks);
}

void quantize_some_rows(InstructionSet set, const Rows& rows) {
  if constexpr (kHasX86Kernels) {
    if (set == InstructionSet::kAvx512) return quantize_rows_avx512(rows);
    if (set == InstructionSet::kAvx2) return quantize_rows_avx2(rows);
  }
  quantize_rows_of_any_type<OneLane>(rows);
}

// Elements that one thread takes at least.
constexpr int64_t kGrain = 65536;

}  // namespace

void quantize_4bit(Kind kind, int64_t block, Values x, int64_t n, uint8_t* codes, float* scales,
                   InstructionSet set) {
  // The blocks [first, ...) and what they become.
  const auto from = [&](int64_t first, int64_t count) {
    return Blocks{.kind = kind,
                  .type = x.type,
                  .x = at_index(x.type, x.data, first * block),
                  .block = block,
                  .count = count,
                  .codes = codes + first * block / 2,
                  .scales = scales + first};
  };
  const int64_t whole = n / block;
  at::parallel_for(0, whole, std::max<int64_t>(1, kGrain / block), [&](int64_t begin, int64_t end) {
    quantize_whole_blocks(set, from(begin, end - begin));
  });
  if (n % block != 0) quantize_short_block(from(whole, 1), n % block);
}

void quantize_rows(Values x, int64_t rows, int64_t columns, int8_t* codes, float* scales,
                   InstructionSet set) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, columns));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    quantize_some_rows(set, {.type = x.type,
                             .x = at_index(x.type, x.data, begin * columns),
                             .rows = end - begin,
                             .columns = columns,
                             .codes = codes + begin * columns,
                             .scales = scales + begin});
  });
}

}  // namespace strata::ops::quant::cpu
