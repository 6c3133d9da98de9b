// Block products of bf16 pairs with the processor's own bf16 arithmetic. Owns: the instructions.
// Never: the order of the tiles (block_product_tiles.h), packing.
#include "strata/ops/instruction_set.h"
#include "strata/ops/matmul/block_product.h"

#ifdef STRATA_X86_KERNELS

#include <immintrin.h>

#include <cstring>

#include "strata/ops/vectorize.h"

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512bf16")
#include "strata/ops/matmul/block_product_tiles.h"

namespace strata::ops::cpu {
namespace {

// Two products of bf16 and two fp32 sums a lane and instruction. Numbers below the smallest normal
// one count as zero.
struct Pairs512 {
  static constexpr int64_t kWidth = 16;
  using Lanes = __m512;
  using Column = __m512bh;
  static STRATA_INLINE void load(const float* from, Lanes& lanes) { lanes = _mm512_loadu_ps(from); }
  static STRATA_INLINE void store(const Lanes& lanes, float* to) { _mm512_storeu_ps(to, lanes); }
  static STRATA_INLINE void read(const float* from, Column& column) {
    column = reinterpret_cast<Column>(_mm512_loadu_ps(from));
  }
  static STRATA_INLINE void add(Lanes& sum, float factor, const Column& column) {
    sum = _mm512_dpbf16_ps(sum, reinterpret_cast<Column>(_mm512_set1_ps(factor)), column);
  }
};

}  // namespace

void pair_product(const BlockProduct& product) {
  if (product.rows > 0) all_tiles<Pairs512, 24, 2>(product);
}

}  // namespace strata::ops::cpu
#pragma GCC pop_options

namespace strata::ops::cpu {

bool has_pair_product() {
  static const bool has = best_instruction_set() == InstructionSet::kAvx512 &&
                          __builtin_cpu_supports("avx512bf16") != 0;
  return has;
}

}  // namespace strata::ops::cpu

#else

#include "strata/base/error.h"

namespace strata::ops::cpu {

bool has_pair_product() { return false; }

void pair_product(const BlockProduct&) {
  throw InternalError("pair_product: found a processor without it; report this as a bug");
}

}  // namespace strata::ops::cpu

#endif
