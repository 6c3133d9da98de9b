// The instructions of Intel's matrix unit (AMX) that ops/matmul/tile_product_cpu.cpp consists of,
// carried out by a handler of SIGILL where the processor lacks them: slow, and exact but for the
// order of a tile's sums. Source: Intel 64 and IA-32 Architectures Software Developer's Manual,
// volume 2, TILELOADD, TDPBF16PS and their like. Owns: the handler, while it lives. Never: a test.
#pragma once

#include <csignal>

namespace strata::ops::reference {

// Instructions that are none of these end the program as before.
class EmulatedTiles {
 public:
  EmulatedTiles();
  ~EmulatedTiles();
  EmulatedTiles(const EmulatedTiles&) = delete;
  EmulatedTiles& operator=(const EmulatedTiles&) = delete;

 private:
  struct sigaction before_ = {};
};

}  // namespace strata::ops::reference
