// How bf16 is multiplied on the CPU. Owns: the choice, one for the process. Never: a product.
#pragma once

namespace strata::ops {

enum class Bf16Products {
  kConverted,  // to fp32, block by block, and multiplied in fp32
  kPairs,      // by the processor's vector instructions for it
  kTiles,      // by its matrix unit
};

// What is fastest on this processor.
Bf16Products bf16_products();
// Tests and benchmarks choose: what is chosen must be there.
void choose_bf16_products(Bf16Products products);

}  // namespace strata::ops
