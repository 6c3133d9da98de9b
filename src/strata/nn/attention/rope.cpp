#include "strata/nn/attention/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ATen.h>

#include "strata/libtorch/host_copies.h"
#include "strata/ops/rope.h"

namespace strata::nn {
namespace {

at::Tensor exponents_of(int64_t head_dim) {
  return at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(head_dim);
}

// base^(-2i / D), in the reference's order of fp32 operations.
at::Tensor plain_frequencies(double base, int64_t head_dim) {
  return 1.0 / at::pow(base, exponents_of(head_dim));
}

// Long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
at::Tensor llama3_frequencies(const RopeOptions& options) {
  const at::Tensor plain = plain_frequencies(options.theta, options.head_dim);
  const double context = static_cast<double>(options.original_max_position_embeddings);
  const double low = context / options.low_freq_factor;
  const double high = context / options.high_freq_factor;
  const at::Tensor wavelength = 2 * std::numbers::pi / plain;
  at::Tensor result = at::where(wavelength > low, plain / options.factor, plain);
  const at::Tensor smooth = (context / wavelength - options.low_freq_factor) /
                            (options.high_freq_factor - options.low_freq_factor);
  const at::Tensor between = (1 - smooth) * result / options.factor + smooth * result;
  return at::where((wavelength < high).logical_or(wavelength > low), result, between);
}

at::Tensor dynamic_frequencies(const RopeOptions& options, int64_t sequence_length) {
  const double limit = static_cast<double>(options.max_position_embeddings);
  const double length = std::max(static_cast<double>(sequence_length), limit);
  const double dim = static_cast<double>(options.head_dim);
  const double stretch = options.factor * length / limit - (options.factor - 1);
  return plain_frequencies(options.theta * std::pow(stretch, dim / (dim - 2)), options.head_dim);
}

// The channel that turns `turns` times within the original length.
double yarn_channel(const RopeOptions& options, double turns) {
  const double length = static_cast<double>(options.original_max_position_embeddings);
  return static_cast<double>(options.head_dim) * std::log(length / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(options.theta));
}

// 1 for the channels that are stretched by the whole factor, 0 for those that stay.
at::Tensor yarn_ramp(const RopeOptions& options) {
  double low = yarn_channel(options, options.beta_fast);
  double high = yarn_channel(options, options.beta_slow);
  if (options.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(options.head_dim - 1));
  if (low == high) high += 0.001;
  return ((at::arange(options.head_dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
}

at::Tensor yarn_frequencies(const RopeOptions& options) {
  const at::Tensor periods = at::pow(options.theta, exponents_of(options.head_dim));
  const at::Tensor kept = 1 - yarn_ramp(options);
  return 1.0 / (options.factor * periods) * (1 - kept) + 1.0 / periods * kept;
}

at::Tensor longrope_frequencies(const RopeOptions& options, int64_t sequence_length) {
  const bool is_long = sequence_length > options.original_max_position_embeddings;
  const at::Tensor factors =
      at::tensor(is_long ? options.long_factors : options.short_factors, at::kFloat);
  return 1.0 / (factors * at::pow(options.theta, exponents_of(options.head_dim)));
}

// Wavelengths as of a head that turns as a whole, of which the first pairs do.
at::Tensor proportional_frequencies(const RopeOptions& options) {
  at::Tensor frequencies = plain_frequencies(options.theta, options.head_dim) / options.factor;
  frequencies.narrow(0, options.turning_pairs, options.head_dim / 2 - options.turning_pairs)
      .zero_();
  return frequencies;
}

}  // namespace

int64_t RopeOptions::length_of_change() const {
  if (kind == RopeKind::kDynamic) return max_position_embeddings;
  return kind == RopeKind::kLongrope ? original_max_position_embeddings : 0;
}

int64_t RopeOptions::reach() const {
  const int64_t original = original_max_position_embeddings > 0 ? original_max_position_embeddings
                                                                : max_position_embeddings;
  const double scaled = factor * static_cast<double>(original);
  return scaled < 1e15 ? std::max(max_position_embeddings, static_cast<int64_t>(scaled))
                       : max_position_embeddings;
}

at::Tensor rope_inverse_frequencies(const RopeOptions& options, int64_t sequence_length) {
  switch (options.kind) {
    case RopeKind::kDefault:
      break;
    case RopeKind::kLinear:
      return plain_frequencies(options.theta, options.head_dim) / options.factor;
    case RopeKind::kLlama3:
      return llama3_frequencies(options);
    case RopeKind::kDynamic:
      return dynamic_frequencies(options, sequence_length);
    case RopeKind::kYarn:
      return yarn_frequencies(options);
    case RopeKind::kLongrope:
      return longrope_frequencies(options, sequence_length);
    case RopeKind::kProportional:
      return proportional_frequencies(options);
  }
  return plain_frequencies(options.theta, options.head_dim);
}

void RopeTables::turn_(const at::Tensor& x, bool inverse) const {
  const int64_t count = 2 * cos.size(1);
  const at::Tensor turning = x.size(2) == count ? x : x.narrow(2, first_channel, count);
  ops::apply_rope_(turning, cos, sin, inverse, pairs);
}

Rope::Rope(const RopeOptions& options)
    : options_(options),
      inverse_frequencies_(
          rope_inverse_frequencies(options, 0).to(options.buffer_type).to(at::kFloat)) {}

at::Tensor Rope::frequencies_for(const at::Tensor& positions, int64_t text_length) const {
  const int64_t limit = options_.length_of_change();
  if (limit == 0 || positions.numel() == 0 || positions.is_meta()) return inverse_frequencies_;
  const int64_t length = std::max(positions.max().item<int64_t>() + 1, text_length);
  if (length <= limit) return inverse_frequencies_;
  const at::Tensor changed = rope_inverse_frequencies(options_, length);
  if (options_.kind == RopeKind::kDynamic) return changed;
  return changed.to(options_.buffer_type).to(at::kFloat);
}

const RopeTables& Rope::tables(const at::Tensor& positions, int64_t text_length) {
  if (positions.is_same(positions_) && positions._version() == positions_version_) {
    return tables_;
  }
  const at::Tensor frequencies = frequencies_for(positions, text_length);
  const at::Tensor angles = positions.to(at::kFloat).unsqueeze(1) *
                            to_device(frequencies, positions.device()).unsqueeze(0);
  // A graph that still waits for its backward may hold the last tables.
  const int64_t num_rows = angles.size(0);
  tables_ = {};
  positions_ = at::Tensor();
  if (!room_.defined() || room_.device() != angles.device() || room_.size(1) < num_rows ||
      room_.storage().use_count() > 1) {
    room_ = at::empty({2, num_rows, angles.size(1)}, angles.options());
  }
  tables_ = {room_[0].narrow(0, 0, num_rows), room_[1].narrow(0, 0, num_rows), options_.pairs,
             options_.first_channel};
  at::cos_out(tables_.cos, angles);
  at::sin_out(tables_.sin, angles);
  if (options_.attention_factor != 1.0)
    room_.narrow(1, 0, num_rows).mul_(options_.attention_factor);
  positions_ = positions;
  positions_version_ = positions._version();
  return tables_;
}

}  // namespace strata::nn
