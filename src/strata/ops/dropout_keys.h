// Where dropout's masks come from, on every device: keys of 64 bits. Owns: how keys are made.
// Never: masks.
#pragma once

#include <cstdint>

namespace strata::ops {

// The finaliser of SplitMix64 (Steele et al. 2014).
inline uint64_t mix_key(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// A token's key; equals row_key(other, t) where t = token_key ^ mix_key(key) ^ mix_key(other).
inline uint64_t row_key(uint64_t key, int64_t token_key) {
  return mix_key(mix_key(key) ^ static_cast<uint64_t>(token_key));
}

// The key of a head's probabilities: heads differ, so that one token's masks are unrelated.
inline uint64_t head_key(uint64_t key, int64_t query_head) {
  constexpr uint64_t kHeadStep = 0xD1B54A32D192ED03u;  // odd
  return key + static_cast<uint64_t>(query_head) * kHeadStep;
}

}  // namespace strata::ops
