// The angles of rotary position embeddings: inverse frequencies of each published kind and the
// cos/sin tables of a micro-batch. Owns: the formulas. Never: the kernel (ops::apply_rope_).
// Source: transformers modeling_rope_utils.py (default, linear, dynamic, yarn, longrope, llama3,
// proportional).
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/ops/kernel_arguments.h"

namespace strata::nn {

enum class RopeKind { kDefault, kLinear, kDynamic, kYarn, kLongrope, kLlama3, kProportional };

struct RopeOptions {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  int64_t head_dim = 0;       // channels of a head that turn
  int64_t first_channel = 0;  // of these in the head
  ops::RopePairs pairs = ops::RopePairs::kHalves;
  int64_t max_position_embeddings = 0;
  double factor = 1.0;                           // all but default and longrope
  int64_t turning_pairs = 0;                     // proportional: the others of the head stay
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  int64_t original_max_position_embeddings = 0;  // llama3, yarn, longrope
  double attention_factor = 1.0;                 // yarn, longrope: of cosines and sines
  double beta_fast = 32.0;                       // yarn: turns within the original length
  double beta_slow = 1.0;                        // yarn
  bool truncate = true;                          // yarn: the ramp begins and ends at channels
  std::vector<double> short_factors = {};        // longrope: [head_dim / 2]
  std::vector<double> long_factors = {};         // longrope: beyond the original length
  // The type to which inverse frequencies are rounded, as MixedPrecision.buffer_dtype rounds the
  // buffer of them; angles stay fp32. Those that kDynamic recomputes are not rounded, as there.
  at::ScalarType buffer_type = at::kFloat;

  // Texts longer than this turn by other frequencies, from their first token on; 0: none do.
  int64_t length_of_change() const;
  // Positions that the scaling is for, at least max_position_embeddings.
  int64_t reach() const;
};

// fp32 [head_dim / 2]. `sequence_length` matters beyond length_of_change() alone: the base of
// kDynamic grows with it, kLongrope takes the long factors.
at::Tensor rope_inverse_frequencies(const RopeOptions& options, int64_t sequence_length);

struct RopeTables {
  at::Tensor cos;  // fp32 [T, head_dim / 2]
  at::Tensor sin;
  ops::RopePairs pairs = ops::RopePairs::kHalves;  // that turn
  int64_t first_channel = 0;                       // of a head that turns

  // Turns its channels of x [T, heads, D] in place; `inverse`: back.
  void turn_(const at::Tensor& x, bool inverse) const;
};

// Threads: one at a time. Memory: the tables of the last positions asked for, so that the layers of
// one micro-batch share them. The next ones are written where the last ones were: tables that
// outlive a step in ever new places would move everything that the next step takes.
class Rope {
 public:
  explicit Rope(const RopeOptions& options);
  const RopeOptions& options() const { return options_; }
  // What the reference keeps: the inverse frequencies and a copy of the initial ones.
  int64_t buffer_bytes() const { return 2 * inverse_frequencies_.numel() * 4; }
  // `positions` int64 [T], on the device where the tables shall be. What the frequencies of
  // kDynamic and kLongrope depend on is the longest document of the micro-batch (the reference
  // also remembers earlier batches with kDynamic), or `text_length` where that is more: of a text
  // that goes through the layers in parts.
  const RopeTables& tables(const at::Tensor& positions, int64_t text_length = 0);

 private:
  at::Tensor frequencies_for(const at::Tensor& positions, int64_t text_length) const;

  RopeOptions options_;
  at::Tensor inverse_frequencies_;
  at::Tensor positions_;  // held, so that its identity stays unique
  uint32_t positions_version_ = 0;
  at::Tensor room_;  // [2, the largest T so far, head_dim / 2]
  RopeTables tables_;
};

}  // namespace strata::nn
