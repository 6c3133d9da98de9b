#include "strata/ops/matmul/bf16_products.h"

#include <atomic>

#include "strata/libtorch/cpu_arithmetic.h"
#include "strata/ops/matmul/block_product.h"

namespace strata::ops {

namespace {

Bf16Products fastest() {
  if (cpu::has_tile_product()) return Bf16Products::kTiles;
  // Intel's vector instructions for pairs make half of what its fp32 ones do.
  if (is_intel_cpu()) return Bf16Products::kConverted;
  return cpu::has_pair_product() ? Bf16Products::kPairs : Bf16Products::kConverted;
}

std::atomic<Bf16Products>& products_to_use() {
  static std::atomic<Bf16Products> products{fastest()};
  return products;
}

}  // namespace

Bf16Products bf16_products() { return products_to_use().load(std::memory_order_relaxed); }
void choose_bf16_products(Bf16Products products) { products_to_use() = products; }

}  // namespace strata::ops
