#include "strata/nn/rope.h"

#include <cmath>
#include <numbers>

#include <ATen/ATen.h>

#include "strata/libtorch/host_copies.h"

namespace strata::nn {
namespace {

// base^(-2i / D), in the reference's order of fp32 operations.
at::Tensor plain_frequencies(double base, int64_t head_dim) {
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(head_dim);
  return 1.0 / at::pow(base, exponents);
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

}  // namespace

at::Tensor rope_inverse_frequencies(const RopeOptions& options, int64_t sequence_length) {
  switch (options.kind) {
    case RopeKind::kDefault:
      break;
    case RopeKind::kLinear:
      return plain_frequencies(options.theta, options.head_dim) / options.factor;
    case RopeKind::kLlama3:
      return llama3_frequencies(options);
    case RopeKind::kDynamic: {
      const double limit = static_cast<double>(options.max_position_embeddings);
      const double length = std::max(static_cast<double>(sequence_length), limit);
      const double dim = static_cast<double>(options.head_dim);
      const double stretch = options.factor * length / limit - (options.factor - 1);
      return plain_frequencies(options.theta * std::pow(stretch, dim / (dim - 2)),
                               options.head_dim);
    }
  }
  return plain_frequencies(options.theta, options.head_dim);
}

Rope::Rope(const RopeOptions& options)
    : options_(options),
      inverse_frequencies_(
          rope_inverse_frequencies(options, 0).to(options.buffer_type).to(at::kFloat)) {}

const RopeTables& Rope::tables(const at::Tensor& positions) {
  if (positions.is_same(positions_) && positions._version() == positions_version_) {
    return tables_;
  }
  at::Tensor frequencies = inverse_frequencies_;
  if (options_.kind == RopeKind::kDynamic && positions.numel() > 0 && !positions.is_meta()) {
    const int64_t length = positions.max().item<int64_t>() + 1;
    if (length > options_.max_position_embeddings) {
      frequencies = rope_inverse_frequencies(options_, length);
    }
  }
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
  tables_ = {room_[0].narrow(0, 0, num_rows), room_[1].narrow(0, 0, num_rows)};
  at::cos_out(tables_.cos, angles);
  at::sin_out(tables_.sin, angles);
  positions_ = positions;
  positions_version_ = positions._version();
  return tables_;
}

}  // namespace strata::nn
