// The 8-bit dynamic map on the CPU, blockwise. Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "strata/ops/quant/kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::quant::cpu {

namespace {

constexpr int kSteps = 65536;

// Borders between neighbouring values; the last never lies below anything.
struct DynamicBorders {
  float borders[256];
  uint8_t table[kSteps];  // code of each of the equal steps of [-1, 1]
};

const DynamicBorders& borders_of_map(bool is_signed) {
  static const std::vector<DynamicBorders>* both = [] {
    auto* made = new std::vector<DynamicBorders>(2);
    for (const bool sign : {false, true}) {
      DynamicBorders& to = (*made)[sign ? 1 : 0];
      const auto& values = dynamic_map(sign);
      for (size_t i = 0; i < 255; ++i) to.borders[i] = (values[i] + values[i + 1]) * 0.5f;
      to.borders[255] = INFINITY;
      int code = 0;
      for (int i = 0; i < kSteps; ++i) {
        const float at = 2.0f * static_cast<float>(i) / 65535.0f - 1.0f;
        while (code < 255 && at > to.borders[code]) ++code;
        to.table[i] = static_cast<uint8_t>(code);
      }
    }
    return made;
  }();
  return (*both)[is_signed ? 1 : 0];
}

// NaN counts as nothing. Magnitudes are ordered like their bits.
STRATA_VECTORIZED float largest_number(const float* x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = float_bits(x[i]) & 0x7FFFFFFFu;
    const uint32_t counted = magnitude > 0x7F800000u ? 0u : magnitude;
    most = counted > most ? counted : most;
  }
  return bits_float(most);
}

// The step of [-1, 1] in which each scaled element lies; NaN lies in the first.
STRATA_VECTORIZED void find_steps(const float* x, int64_t n, float inverse, int32_t* steps) {
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = x[i] * inverse;
    const float above = scaled < -1.0f ? -1.0f : scaled;
    const float clamped = above > 1.0f ? 1.0f : above;
    const float step = __builtin_fmaf((clamped + 1.0f) * 0.5f, 65535.0f, 0.5f);
    steps[i] = static_cast<int32_t>(scaled == scaled ? step : 0.0f);
  }
}

void code_by_table(const DynamicBorders& map, const float* x, int64_t n, float scale,
                   uint8_t* codes) {
  constexpr int64_t kAtOnce = 256;
  int32_t steps[kAtOnce];
  const float inverse = 1.0f / scale;
  for (int64_t begin = 0; begin < n; begin += kAtOnce) {
    const int64_t count = std::min(kAtOnce, n - begin);
    find_steps(x + begin, count, inverse, steps);
    for (int64_t i = 0; i < count; ++i) codes[begin + i] = map.table[steps[i]];
  }
}

// Eight halvings without a branch: the compiler keeps several elements in flight.
STRATA_VECTORIZED void code_to_nearest(const float* borders, const float* x, int64_t n, float scale,
                                       uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = x[i] / scale;
    int32_t index = 0;
    for (int32_t half = 128; half > 0; half /= 2) {
      index += scaled > borders[index + half - 1] ? half : 0;
    }
    codes[i] = static_cast<uint8_t>(index);
  }
}

STRATA_VECTORIZED void dequantize_block(const float* values, const uint8_t* codes, int64_t n,
                                        float scale, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = values[codes[i]] * scale;
}

}  // namespace

void quantize_dynamic(bool is_signed, Rounding rounding, int64_t block, const float* x, int64_t n,
                      uint8_t* codes, float* scales) {
  const DynamicBorders& map = borders_of_map(is_signed);
  // The code of zero in a block without anything else.
  const uint8_t zero = is_signed ? 127 : 0;
  const int64_t blocks = (n + block - 1) / block;
  at::parallel_for(0, blocks, std::max<int64_t>(1, 16384 / block), [&](int64_t from, int64_t to) {
    for (int64_t b = from; b < to; ++b) {
      const int64_t begin = b * block, count = std::min(block, n - begin);
      const float scale = largest_number(x + begin, count);
      scales[b] = scale;
      if (scale == 0) {
        std::fill_n(codes + begin, count, rounding == Rounding::kTable ? uint8_t{0} : zero);
      } else if (rounding == Rounding::kTable) {
        code_by_table(map, x + begin, count, scale, codes + begin);
      } else {
        code_to_nearest(map.borders, x + begin, count, scale, codes + begin);
      }
    }
  });
}

void dequantize_dynamic(bool is_signed, int64_t block, const uint8_t* codes, const float* scales,
                        int64_t n, float* x) {
  const auto& values = dynamic_map(is_signed);
  for (int64_t begin = 0; begin < n; begin += block) {
    dequantize_block(values.data(), codes + begin, std::min(block, n - begin), *scales++,
                     x + begin);
  }
}

}  // namespace strata::ops::quant::cpu
