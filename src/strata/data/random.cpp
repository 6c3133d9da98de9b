#include "strata/data/random.h"

#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include "strata/base/error.h"

namespace strata::data {

TorchGenerator::TorchGenerator(uint64_t seed) {
  state_[0] = static_cast<uint32_t>(seed);
  for (int j = 1; j < kSize; ++j) {
    state_[j] = 1812433253u * (state_[j - 1] ^ (state_[j - 1] >> 30)) + static_cast<uint32_t>(j);
  }
}

void TorchGenerator::twist() {
  constexpr int kMiddle = 397;
  for (int k = 0; k < kSize; ++k) {
    const uint32_t mixed = (state_[k] & 0x80000000u) | (state_[(k + 1) % kSize] & 0x7fffffffu);
    state_[k] = state_[(k + kMiddle) % kSize] ^ (mixed >> 1) ^ ((mixed & 1u) * 0x9908b0dfu);
  }
  next_ = 0;
}

uint32_t TorchGenerator::next32() {
  if (next_ == kSize) twist();
  uint32_t y = state_[next_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

uint64_t TorchGenerator::next64() {
  const uint64_t high = next32();
  return high << 32 | next32();
}

std::vector<int64_t> TorchGenerator::randperm(int64_t n) {
  if (n < 0) throw InternalError("randperm: found n = {}, expected at least 0", n);
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  // torch draws 64 bits where the bias of the modulo would begin to show.
  const bool wide = n >= std::numeric_limits<uint32_t>::max() / 20;
  for (int64_t i = 0; i < n - 1; ++i) {
    const uint64_t draw = wide ? next64() : next32();
    std::swap(order[i], order[i + static_cast<int64_t>(draw % static_cast<uint64_t>(n - i))]);
  }
  return order;
}

float TorchGenerator::uniform(float from, float to) {
  return static_cast<float>(next32() & 0xffffffu) * 0x1p-24f * (to - from) + from;
}

namespace {

// numpy.random.SeedSequence(seed).generate_state(8): eight well mixed words from the seed's.
std::array<uint32_t, 8> seed_words(uint64_t seed) {
  const std::array<uint32_t, 4> entropy = {static_cast<uint32_t>(seed),
                                           static_cast<uint32_t>(seed >> 32), 0, 0};
  uint32_t hash = 0x43b0d7e5u;
  const auto hash_mix = [&hash](uint32_t value) {
    value ^= hash;
    hash *= 0x931e8875u;
    value *= hash;
    return value ^ (value >> 16);
  };
  std::array<uint32_t, 4> pool;
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = hash_mix(entropy[i]);
  for (size_t source = 0; source < pool.size(); ++source) {
    for (size_t target = 0; target < pool.size(); ++target) {
      if (source == target) continue;
      const uint32_t mixed = 0xca01f9ddu * pool[target] - 0x4973f715u * hash_mix(pool[source]);
      pool[target] = mixed ^ (mixed >> 16);
    }
  }
  std::array<uint32_t, 8> words;
  uint32_t key = 0x8b51f9ddu;
  for (size_t i = 0; i < words.size(); ++i) {
    uint32_t value = pool[i % pool.size()] ^ key;
    key *= 0x58f38dedu;
    value *= key;
    words[i] = value ^ (value >> 16);
  }
  return words;
}

}  // namespace

NumpyGenerator::NumpyGenerator(uint64_t seed) {
  const std::array<uint32_t, 8> words = seed_words(seed);
  const auto wide = [&words](size_t i) {
    const auto part = [&words](size_t j) { return uint64_t{words[j + 1]} << 32 | words[j]; };
    return Uint128{part(i)} << 64 | part(i + 2);
  };
  increment_ = wide(4) << 1 | 1;
  step();
  state_ += wide(0);
  step();
}

void NumpyGenerator::step() {
  constexpr Uint128 kMultiplier = Uint128{0x2360ed051fc65da4u} << 64 | 0x4385df649fccf645u;
  state_ = state_ * kMultiplier + increment_;
}

uint64_t NumpyGenerator::next64() {
  step();
  const uint64_t folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
  return std::rotr(folded, static_cast<int>(state_ >> 122));
}

uint32_t NumpyGenerator::next32() {
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  const uint64_t draw = next64();
  has_half_ = true;
  half_ = static_cast<uint32_t>(draw >> 32);
  return static_cast<uint32_t>(draw);
}

std::vector<int64_t> NumpyGenerator::permutation(int64_t n) {
  if (n < 0 || n > int64_t{1} << 32) {
    throw InternalError("permutation: found n = {}, expected 0 to 2^32", n);
  }
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = n - 1; i > 0; --i) {
    const auto last = static_cast<uint32_t>(i);
    const uint32_t mask = std::numeric_limits<uint32_t>::max() >> std::countl_zero(last);
    uint32_t j;
    do {
      j = next32() & mask;
    } while (j > last);
    std::swap(order[i], order[j]);
  }
  return order;
}

}  // namespace strata::data
