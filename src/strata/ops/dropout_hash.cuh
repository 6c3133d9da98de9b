// The random bits of dropout_cpu.cpp and uniform_noise_cpu.cpp on NVIDIA GPUs. Never: a kernel.
#pragma once

#include <cstdint>

namespace strata::ops::cuda {

// The finaliser of SplitMix64 (Steele et al. 2014).
__device__ inline uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Of one token: row_key() of ops/dropout_keys.h.
__device__ inline uint64_t row_bits(uint64_t key, int64_t token_key) {
  return mix(mix(key) ^ static_cast<uint64_t>(token_key));
}

// Of one channel.
__device__ inline uint32_t channel_bits(uint64_t row, int64_t channel) {
  uint32_t h = static_cast<uint32_t>(row) + static_cast<uint32_t>(channel) * 0x9E3779B9u;
  h = (h ^ (h >> 16)) * 0x7FEB352Du;
  h = (h ^ (h >> 15) ^ static_cast<uint32_t>(row >> 32)) * 0x846CA68Bu;
  return h ^ (h >> 16);
}

}  // namespace strata::ops::cuda
