// Oracle: the kernel without vector instructions, to the bit, for every instruction set that the
// processor has; the definition of a code as the number of borders below an element; and for ranges
// and bf16 the whole and fp32.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "strata/ops/quant/kernels.h"
#include "strata/ops/quant/quantized.h"
#include "strata/ops/quant/range_quantizer.h"

namespace strata::ops::quant {
namespace {

using cpu::Values;

std::vector<InstructionSet> sets_here() {
  std::vector<InstructionSet> sets{InstructionSet::kBaseline};
  for (const InstructionSet set : {InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (static_cast<int>(set) <= static_cast<int>(best_instruction_set())) sets.push_back(set);
  }
  return sets;
}

Values values_of(const at::Tensor& x) {
  const Element type = x.scalar_type() == at::kFloat  ? Element::kFloat
                       : x.scalar_type() == at::kHalf ? Element::kHalf
                                                      : Element::kBFloat16;
  return {type, x.const_data_ptr()};
}

// Ordinary numbers, some of every kind that is not, and elements on the borders.
at::Tensor sample(int64_t n, at::ScalarType type) {
  at::Tensor x = at::randn({n});
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float special[] = {NAN, kInfinity, -kInfinity, 0.0f, -0.0f, 1e-42f, 3e38f, -65520.0f};
  for (int64_t i = 37, k = 0; i < n; i += 701, ++k) x[i] = special[k % 8];
  if (n < 4224) return x.to(type);
  x.narrow(0, 2048, 64).fill_(0);
  // Two blocks whose scale is 1.
  for (const Kind kind : {Kind::kNf4, Kind::kFp4}) {
    const at::Tensor block = x.narrow(0, kind == Kind::kNf4 ? 4096 : 4160, 64).fill_(0.25f);
    block[0] = 1.0f;
    for (size_t i = 0; i < 15; ++i) {
      const float border = borders_of(kind).borders[i];
      block[static_cast<int64_t>(i) + 1] = border;
      block[static_cast<int64_t>(i) + 17] = std::nextafter(border, 2.0f);
      block[static_cast<int64_t>(i) + 33] = std::nextafter(border, -2.0f);
    }
    block[50] = -0.0f;
    block[51] = 1e-30f;
    block[52] = -1e-30f;
  }
  return x.to(type);
}

// Zeros of both signs in turns.
int16_t zero_at(size_t place) { return place % 2 == 0 ? 0 : INT16_MIN; }

TEST(Quantize, InstructionSetsAgreeOn4Bits) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t n : {1, 2, 31, 32, 33, 64, 95, 4096, 8193, 20011}) {
      const at::Tensor x = sample(n, type);
      for (const Kind kind : {Kind::kNf4, Kind::kFp4}) {
        for (const int64_t block : {32, 64, 128, 4096}) {
          std::vector<std::vector<uint8_t>> codes;
          std::vector<std::vector<float>> scales;
          for (const InstructionSet set : sets_here()) {
            codes.emplace_back((n + 1) / 2);
            scales.emplace_back((n + block - 1) / block);
            cpu::quantize_4bit(kind, block, values_of(x), n, codes.back().data(),
                               scales.back().data(), set);
            EXPECT_EQ(codes.back(), codes.front()) << n << " by " << block;
            for (size_t i = 0; i < scales[0].size(); ++i) {
              const bool both_nan = std::isnan(scales[0][i]) && std::isnan(scales.back()[i]);
              EXPECT_TRUE(both_nan || scales[0][i] == scales.back()[i]) << n << " by " << block;
            }
          }
        }
      }
    }
  }
}

// Kernels may look at 16 bits of an element first: around every border, and at the halves of steps
// of several numbers of them, distances from far below such a step to more than one.
TEST(Quantize, InstructionSetsAgreeAroundTheBorders) {
  for (const Kind kind : {Kind::kNf4, Kind::kFp4}) {
    std::vector<float> near;
    for (const float border : borders_of(kind).borders) {
      for (int i = -300; i <= 300; ++i) near.push_back(border + static_cast<float>(i) * 0x1p-22f);
      for (const float steps : {32624.0f, 32640.0f, 32767.0f, 32768.0f}) {
        for (const float half : {-1.5f, -0.5f, 0.5f, 1.5f}) {
          const float edge = (std::nearbyint(border * steps) + half) / steps;
          near.insert(near.end(), {edge, std::nextafter(edge, 2.0f), std::nextafter(edge, -2.0f)});
        }
      }
    }
    // Blocks of 64 that hold the largest element, 1; then the same of other scales.
    constexpr int64_t kBlock = 64;
    at::Tensor x = at::full({(static_cast<int64_t>(near.size()) / 63 + 1) * kBlock}, 0.5f);
    for (size_t i = 0; i < near.size(); ++i) {
      x[static_cast<int64_t>(i / 63 * kBlock + i % 63 + 1)] = near[i];
    }
    x.view({-1, kBlock}).select(1, 0).fill_(1);
    for (const float scale : {1.0f, 0.3f, 7e-12f, 3e-31f, 2.5e37f, 3.3e38f}) {
      const at::Tensor scaled = x * scale;
      std::vector<std::vector<uint8_t>> codes;
      std::vector<float> scales(static_cast<size_t>(x.numel() / kBlock));
      for (const InstructionSet set : sets_here()) {
        codes.emplace_back(x.numel() / 2);
        cpu::quantize_4bit(kind, kBlock, values_of(scaled), x.numel(), codes.back().data(),
                           scales.data(), set);
        EXPECT_EQ(codes.back(), codes.front()) << scale;
      }
    }
  }
}

TEST(Quantize, InstructionSetsAgreeOnManyElements) {
  at::manual_seed(3);
  constexpr int64_t kCount = 1 << 19, kBlock = 64;
  const at::Tensor scale = (at::randn({kCount / kBlock, 1}) * 20).exp2();
  const at::Tensor dense = (at::randn({kCount / kBlock, kBlock}) * scale).view({-1});
  const at::Tensor sparse = dense * at::rand({kCount}).gt(0.7);
  for (const at::Tensor& values : {dense, sparse}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = values.to(type);
      for (const Kind kind : {Kind::kNf4, Kind::kFp4}) {
        std::vector<std::vector<uint8_t>> codes;
        std::vector<float> scales(kCount / kBlock);
        for (const InstructionSet set : sets_here()) {
          codes.emplace_back(kCount / 2);
          cpu::quantize_4bit(kind, kBlock, values_of(x), kCount, codes.back().data(), scales.data(),
                             set);
          EXPECT_TRUE(codes.back() == codes.front()) << c10::toString(type);
        }
      }
    }
  }
}

// Every bf16 from 2^-13 of the scale on, beside every significand that a scale can have: where
// fractions of small numbers meet a border exactly, rounding alone says on which side they are.
TEST(Quantize, InstructionSetsAgreeOnFractionsOfBFloat16) {
  constexpr int32_t kBlock = 64, kSignificands = 128, kMagnitudes = 13 * kSignificands;
  for (const int32_t exponent : {30, 127, 144, 250}) {
    std::vector<int16_t> bits;
    for (int32_t scale = exponent * kSignificands; scale < (exponent + 1) * kSignificands;
         ++scale) {
      for (int32_t i = 0; i < 2 * kMagnitudes; ++i) {
        if (bits.size() % kBlock == 0) bits.push_back(static_cast<int16_t>(scale));
        const int32_t sign = i % 2 == 0 ? 0 : INT16_MIN;
        bits.push_back(static_cast<int16_t>((scale - i / 2) | sign));
      }
      while (bits.size() % kBlock != 0) bits.push_back(zero_at(bits.size()));
    }
    const auto count = static_cast<int64_t>(bits.size());
    for (const Kind kind : {Kind::kNf4, Kind::kFp4}) {
      std::vector<std::vector<uint8_t>> codes;
      std::vector<float> scales(bits.size() / kBlock);
      for (const InstructionSet set : sets_here()) {
        codes.emplace_back(count / 2);
        cpu::quantize_4bit(kind, kBlock, {Element::kBFloat16, bits.data()}, count,
                           codes.back().data(), scales.data(), set);
        EXPECT_TRUE(codes.back() == codes.front()) << exponent;
      }
    }
  }
}

TEST(Quantize, InstructionSetsAgreeOn8Bits) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t columns : {1, 7, 8, 16, 17, 63, 4099}) {
      constexpr int64_t kRows = 5;
      const at::Tensor x = sample(kRows * columns, type);
      std::vector<std::vector<int8_t>> codes;
      std::vector<std::vector<float>> scales;
      for (const InstructionSet set : sets_here()) {
        codes.emplace_back(kRows * columns);
        scales.emplace_back(kRows);
        cpu::quantize_rows(values_of(x), kRows, columns, codes.back().data(), scales.back().data(),
                           set);
        EXPECT_EQ(codes.back(), codes.front()) << columns;
        for (size_t i = 0; i < kRows; ++i) {
          const bool both_nan = std::isnan(scales[0][i]) && std::isnan(scales.back()[i]);
          EXPECT_TRUE(both_nan || scales[0][i] == scales.back()[i]) << columns;
        }
      }
    }
  }
}

TEST(Quantize, CodesCountTheBordersBelow) {
  const at::Tensor x = sample(64 * 140, at::kFloat).nan_to_num(0.5, 0.5, 0.5).clamp(-9, 9);
  std::vector<uint8_t> codes(static_cast<size_t>(x.numel() / 2));
  std::vector<float> scales(140);
  for (const Kind kind : {Kind::kNf4, Kind::kFp4}) {
    cpu::quantize_4bit(kind, 64, values_of(x), x.numel(), codes.data(), scales.data());
    const Borders& table = borders_of(kind);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const float scale = scales[static_cast<size_t>(i / 64)];
      EXPECT_EQ(scale, x.narrow(0, i / 64 * 64, 64).abs().max().item<float>());
      const float scaled = x.const_data_ptr<float>()[i] * (1.0f / std::max(scale, 1e-38f));
      size_t below = 0;
      for (const float border : table.borders) below += border < scaled ? 1 : 0;
      const uint8_t byte = codes[static_cast<size_t>(i / 2)];
      EXPECT_EQ(i % 2 == 0 ? byte >> 4 : byte & 15, table.by_value[below]) << i;
    }
  }
}

// Elements from far below fp16's smallest to its largest, beside scales from 2^-8 on.
TEST(Quantize, EightBitsOfBFloat16AreThoseOfTheSameNumbersInFp32) {
  constexpr int64_t kRows = 26, kColumns = 1003;
  const at::Tensor exponents = at::rand({kRows, kColumns}) * -26;
  const at::Tensor scales = at::pow(2.0, at::arange(kRows) - 8).unsqueeze(1);
  const at::Tensor x = (at::randn({kRows, kColumns}).sign() * at::pow(2.0, exponents) * scales)
                           .to(at::kBFloat16)
                           .contiguous();
  const Format format{Kind::kInt8, 64, false};
  EXPECT_TRUE(quantize(x, format).bytes.equal(quantize(x.to(at::kFloat), format).bytes));
}

TEST(Quantize, RangesGiveTheBytesOfTheWhole) {
  constexpr int64_t kColumns = 1007;
  for (const Format& format : {Format{Kind::kNf4, 64, false}, Format{Kind::kFp4, 256, true},
                               Format{Kind::kInt8, 64, false}}) {
    const int64_t at_once = RangeQuantizer::at_once(format, kColumns);
    const int64_t rows = 5 * at_once / (2 * kColumns);
    const at::Tensor x = sample(rows * kColumns, at::kBFloat16);
    const QuantizedMatrix whole = quantize(x.view({rows, kColumns}), format);
    at::Tensor bytes = at::full({whole.bytes.numel()}, 255, at::kByte);
    RangeQuantizer quantizer(format, rows, kColumns, bytes);
    for (int64_t begin = 0; begin < x.numel(); begin += at_once) {
      const at::Tensor range = x.narrow(0, begin, std::min(at_once, x.numel() - begin));
      quantizer.quantize(range, begin,
                         bytes.mutable_data_ptr<uint8_t>() + quantizer.code_offset(begin));
    }
    quantizer.finish();
    EXPECT_TRUE(bytes.equal(whole.bytes)) << describe(format);
    EXPECT_TRUE(
        quantizer.scales().view(at::kByte).equal(whole.scales().view(at::kByte)));  // NaN too
  }
}

TEST(Quantize, BytesBetweenPartsAreZero) {
  const QuantizedMatrix matrix = quantize(at::randn({3, 7}), {Kind::kNf4, 32, /*nested=*/true});
  const Layout layout = matrix.layout();
  EXPECT_GT(layout.scales, layout.num_codes);
  EXPECT_GT(layout.nested, layout.scales + layout.num_scales);
  for (int64_t i = layout.num_codes; i < layout.scales; ++i) {
    EXPECT_EQ(matrix.bytes[i].item<uint8_t>(), 0);
  }
  for (int64_t i = layout.scales + layout.num_scales; i < layout.nested; ++i) {
    EXPECT_EQ(matrix.bytes[i].item<uint8_t>(), 0);
  }
}

}  // namespace
}  // namespace strata::ops::quant
