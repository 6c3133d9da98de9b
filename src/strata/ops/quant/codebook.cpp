// Tables of the quantised formats, made as bitsandbytes makes them, in single precision. Never: a
// kernel.
#include "strata/ops/quant/codebook.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "strata/base/error.h"

namespace strata::ops::quant {
namespace {

constexpr std::array<float, 16> kNf4Codes = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

constexpr std::array<float, 16> kMxfp4Codes = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                               4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                               -2.0f, -3.0f, -4.0f, -6.0f};

std::array<float, 16> make_fp4_codes() {
  // Sign, two bits of exponent, one of mantissa, in units of 1/12; there is no negative zero.
  constexpr std::array<float, 8> kTwelfths = {0.0f, 0.0625f, 8.0f, 12.0f, 4.0f, 6.0f, 2.0f, 3.0f};
  std::array<float, 16> codes{};
  for (size_t i = 0; i < 8; ++i) {
    codes[i] = kTwelfths[i] / 12.0f;
    codes[i + 8] = i == 0 ? 0.0f : -codes[i];
  }
  return codes;
}

Borders make_borders(const std::array<float, 16>& codes) {
  Borders result{};
  std::iota(result.by_value.begin(), result.by_value.end(), uint8_t{0});
  std::stable_sort(result.by_value.begin(), result.by_value.end(),
                   [&](uint8_t a, uint8_t b) { return codes[a] < codes[b]; });
  for (size_t i = 0; i < 15; ++i) {
    result.borders[i] = (codes[result.by_value[i]] + codes[result.by_value[i + 1]]) / 2;
  }
  return result;
}

// torch.linspace(0.1, 1, steps) in fp32: from both ends to the middle, rounded once.
std::vector<float> tenth_to_one(int steps) {
  const float start = 0.1f, end = 1.0f;
  const float step = (end - start) / static_cast<float>(steps - 1);
  std::vector<float> values;
  for (int i = 0; i < steps; ++i) {
    values.push_back(i < steps / 2 ? std::fma(step, static_cast<float>(i), start)
                                   : std::fma(-step, static_cast<float>(steps - i - 1), end));
  }
  return values;
}

std::array<float, 256> make_dynamic_map(bool is_signed) {
  std::vector<float> values;
  constexpr int kExponentBits = 7;
  for (int i = 0; i < kExponentBits; ++i) {
    const int items = (1 << (is_signed ? i : i + 1)) + 1;
    const std::vector<float> boundaries = tenth_to_one(items);
    const auto power = static_cast<float>(std::pow(10.0, i - (kExponentBits - 1)));
    for (size_t k = 0; k + 1 < boundaries.size(); ++k) {
      const float mean = (boundaries[k] + boundaries[k + 1]) / 2.0f;
      values.push_back(power * mean);
      if (is_signed) values.push_back(-(power * mean));
    }
  }
  values.push_back(0.0f);
  values.push_back(1.0f);
  std::sort(values.begin(), values.end());
  std::array<float, 256> map{};
  if (values.size() != map.size()) {
    throw InternalError("dynamic map: found {} values, expected 256", values.size());
  }
  std::copy(values.begin(), values.end(), map.begin());
  return map;
}

}  // namespace

const std::array<float, 16>& codes_of(Kind kind) {
  static const std::array<float, 16> kFp4Codes = make_fp4_codes();
  if (kind == Kind::kMxfp4) return kMxfp4Codes;
  return kind == Kind::kFp4 ? kFp4Codes : kNf4Codes;
}

const Borders& borders_of(Kind kind) {
  static const Borders kNf4 = make_borders(codes_of(Kind::kNf4));
  static const Borders kFp4 = make_borders(codes_of(Kind::kFp4));
  return kind == Kind::kFp4 ? kFp4 : kNf4;
}

const std::array<float, 256>& dynamic_map(bool is_signed) {
  static const std::array<float, 256> kSigned = make_dynamic_map(true);
  static const std::array<float, 256> kUnsigned = make_dynamic_map(false);
  return is_signed ? kSigned : kUnsigned;
}

}  // namespace strata::ops::quant
