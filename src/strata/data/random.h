// The random number generators of the reference stack, bit for bit: torch's CPU generator (batch
// order) and numpy's default generator (dataset shuffles). Never seeds itself from the outside.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace strata::data {

// torch.Generator on the CPU: MT19937. As manual_seed(), it uses only the low 32 bits of the seed.
class TorchGenerator {
 public:
  explicit TorchGenerator(uint64_t seed);

  uint32_t next32();
  // Two draws, the first one is the high half.
  uint64_t next64();
  // torch.randperm(n): each of 0..n-1 once.
  std::vector<int64_t> randperm(int64_t n);
  // One element of Tensor.uniform_(from, to) in float32.
  float uniform(float from = 0.0f, float to = 1.0f);

 private:
  static constexpr int kSize = 624;
  void twist();
  std::array<uint32_t, kSize> state_;
  int next_ = kSize;
};

// numpy.random.default_rng(seed): PCG64 seeded through SeedSequence.
class NumpyGenerator {
 public:
  explicit NumpyGenerator(uint64_t seed);

  uint64_t next64();
  // Hands out the low half of a 64-bit draw, then its high half.
  uint32_t next32();
  // Generator.random(): one double in [0, 1).
  double uniform() { return static_cast<double>(next64() >> 11) * 0x1p-53; }
  // Generator.permutation(n), which is also the order of datasets.Dataset.shuffle(seed).
  // Requires: n <= 2^32.
  std::vector<int64_t> permutation(int64_t n);

 private:
  __extension__ typedef unsigned __int128 Uint128;
  void step();
  Uint128 state_ = 0;
  Uint128 increment_ = 0;
  bool has_half_ = false;
  uint32_t half_ = 0;
};

}  // namespace strata::data
