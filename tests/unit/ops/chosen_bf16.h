// How the CPU multiplies bf16 while a test runs; tiles are emulated where the processor has none.
// Owns: the choice, which ends with the object. Never: a test.
#pragma once

#include <memory>
#include <vector>

#include "emulated_tiles.h"
#include "strata/ops/instruction_set.h"
#include "strata/ops/matmul/bf16_products.h"
#include "strata/ops/matmul/block_product.h"

namespace strata::ops::reference {

class ChosenBf16 {
 public:
  explicit ChosenBf16(Bf16Products products) {
    if (products == Bf16Products::kTiles && !cpu::has_tile_product()) {
      emulated_ = std::make_unique<EmulatedTiles>();
    }
    choose_bf16_products(products);
  }
  ~ChosenBf16() { choose_bf16_products(before_); }
  ChosenBf16(const ChosenBf16&) = delete;
  ChosenBf16& operator=(const ChosenBf16&) = delete;

 private:
  Bf16Products before_ = bf16_products();
  std::unique_ptr<EmulatedTiles> emulated_;
};

// All that can run here.
inline std::vector<Bf16Products> all_bf16_products() {
  std::vector<Bf16Products> all = {Bf16Products::kConverted};
  if (cpu::has_pair_product()) all.push_back(Bf16Products::kPairs);
  if (kHasX86Kernels) all.push_back(Bf16Products::kTiles);
  return all;
}

inline const char* name_of(Bf16Products products) {
  switch (products) {
    case Bf16Products::kConverted:
      return "converted";
    case Bf16Products::kPairs:
      return "pairs";
    case Bf16Products::kTiles:
      return "tiles";
  }
  return "";
}

}  // namespace strata::ops::reference
