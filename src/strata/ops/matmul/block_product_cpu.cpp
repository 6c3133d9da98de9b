// Block products on the CPU: one tile of c in registers while the whole inner dimension runs by, in
// three widths of register. Never: threads.
#include "strata/ops/matmul/block_product.h"

#include <cstring>

#include "strata/ops/instruction_set.h"
#include "strata/ops/lanes.h"
#include "strata/ops/matmul/block_product_tiles.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

// Memory need not be aligned to the vector.
template <typename Vector>
struct Floats {
  static constexpr int64_t kWidth = sizeof(Vector) / sizeof(float);
  using Lanes = Vector;
  using Column = Vector;
  static STRATA_INLINE void load(const float* from, Lanes& lanes) {
    std::memcpy(&lanes, from, sizeof lanes);
  }
  static STRATA_INLINE void store(const Lanes& lanes, float* to) {
    std::memcpy(to, &lanes, sizeof lanes);
  }
  static STRATA_INLINE void read(const float* from, Column& column) { load(from, column); }
  static STRATA_INLINE void add(Lanes& sum, float factor, const Column& column) {
    sum += factor * column;
  }
};

// Tiles that fill the registers: 32 of 512 bit, 16 of 256 bit, 16 or 32 of 128 bit.
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("arch=x86-64-v4"))) void product_512(const BlockProduct& p) {
  all_tiles<Floats<Lanes16>, 24, 4>(p);
}
__attribute__((target("arch=x86-64-v3"))) void product_256(const BlockProduct& p) {
  all_tiles<Floats<Lanes8>, 12, 2>(p);
}
#endif
void product_128(const BlockProduct& p) { all_tiles<Floats<Lanes4>, 12, 2>(p); }

using ProductFunction = void (*)(const BlockProduct&);

ProductFunction best_product() {
#if defined(__x86_64__) && defined(__GNUC__)
  const InstructionSet best = best_instruction_set();
  if (best == InstructionSet::kAvx512) return product_512;
  if (best == InstructionSet::kAvx2) return product_256;
#endif
  return product_128;
}

}  // namespace

void block_product(const BlockProduct& product) {
  static const ProductFunction function = best_product();
  if (product.rows > 0) function(product);
}

}  // namespace strata::ops::cpu
