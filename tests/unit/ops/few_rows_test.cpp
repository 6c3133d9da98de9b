// Oracle: products in double with the decoded matrix; of values of codes their definition, to the
// bit, for every instruction set that the processor has; of threads the result of one.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "codes_of_files.h"
#include "fp8_reference.h"
#include "int_reference.h"
#include "mxfp4_reference.h"
#include "strata/ops/quant/codebook.h"
#include "strata/ops/quant/decode_pairs.h"
#include "strata/ops/quant/few_rows.h"
#include "strata/ops/quant/quantized.h"

namespace strata::ops::quant {
namespace {

TEST(DecodePairs, EverySetGivesTheTablesValueTimesTheScale) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 7);
  for (const Kind kind : {Kind::kNf4, Kind::kFp4}) {
    const auto& table = codes_of(kind);
    for (const float scale : {0.37f, -2.0f, 0.0f, 3e38f, 1e-41f}) {
      for (const size_t pairs : {0u, 1u, 3u, 4u, 5u, 8u, 15u, 16u, 17u, 31u, 32u, 256u}) {
        for (const InstructionSet set :
             {InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
          if (static_cast<int>(set) > static_cast<int>(best_instruction_set())) continue;
          std::vector<float> x(2 * pairs + 1, 77.0f);
          cpu::decode_pairs({table.data(), scale}, codes.data(), static_cast<int64_t>(pairs),
                            x.data(), set);
          std::vector<float> turned(2 * pairs);
          cpu::decode_pairs({table.data(), scale, Element::kFloat, /*low_half_first=*/true},
                            codes.data(), static_cast<int64_t>(pairs), turned.data(), set);
          std::vector<float> rounded(2 * pairs);
          cpu::decode_pairs({table.data(), scale, Element::kBFloat16}, codes.data(),
                            static_cast<int64_t>(pairs), rounded.data(), set);
          for (size_t i = 0; i < 2 * pairs; ++i) {
            const int code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
            const float value = table[static_cast<size_t>(code)] * scale;
            EXPECT_EQ(x[i], value) << pairs << " " << i;
            EXPECT_EQ(turned[i ^ 1], value) << pairs << " " << i;
            EXPECT_EQ(rounded[i], static_cast<float>(c10::BFloat16(value))) << pairs << " " << i;
          }
          EXPECT_EQ(x.back(), 77.0f) << "it wrote beyond its end";
        }
      }
    }
  }
}

// Rows that end within a byte, a block or a register, and one that is longer than what is decoded
// at a time.
constexpr int64_t kShapes[][2] = {{1, 1}, {3, 131}, {37, 64}, {130, 33}, {5, 2311}, {2048, 2}};
const Format kFormats[] = {{Kind::kNf4, 64, false},
                           {Kind::kNf4, 32, true},
                           {Kind::kFp4, 128, false},
                           {Kind::kInt8, 64, false}};

TEST(FewRows, EqualProductsInDouble) {
  at::manual_seed(3);
  for (const auto& [rows, columns] : kShapes) {
    for (const Format& format : kFormats) {
      const QuantizedMatrix weight = quantize(at::randn({rows, columns}), format);
      reference::expect_products(weight, dequantize(weight, at::kFloat).to(at::kDouble));
    }
  }
}

// Of every form that answers multiply, those of files, too.
TEST(FewRows, OfAnswersEqualProductsInDouble) {
  at::manual_seed(6);
  std::vector<QuantizedMatrix> weights;
  for (const auto& of : reference::kFp8Cases) {
    weights.push_back(reference::random_fp8(of, at::kBFloat16));
  }
  for (const auto& of : reference::kIntCases) {
    weights.push_back(reference::random_ints(of, at::kHalf, /*even=*/true));
  }
  weights.push_back(quantize(at::randn({37, 131}), {Kind::kNf4, 64, true}));
  for (const QuantizedMatrix& weight : weights) {
    const at::Tensor dense = dequantize(weight, at::kFloat);
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
      for (const int64_t rows : {1, 5, 16}) {
        const at::Tensor x = at::randn({rows, weight.columns}).to(compute);
        const at::Tensor y = at::ones({rows, weight.rows}, compute);
        ASSERT_TRUE(multiply_few_rows_into(y, x, weight, /*beta=*/1, compute));
        const at::Tensor rounded = dense.to(compute).to(at::kDouble);
        const at::Tensor expected = at::mm(x.to(at::kDouble), rounded.t()) + 1;
        EXPECT_LT(reference::relative_error(y, expected), compute == at::kFloat ? 1e-5 : 1e-2)
            << describe(weight.format) << " " << weight.rows << " x " << weight.columns;
      }
    }
  }
}

// Codes of MXFP4 are those of the transpose, which is what is multiplied.
TEST(FewRows, OfMxfp4EqualProductsInDouble) {
  at::manual_seed(7);
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 32}, {37, 96}, {5, 2080}}) {
    for (const at::ScalarType plain : {at::kBFloat16, at::kHalf}) {
      QuantizedMatrix weight = ops::reference::random_mxfp4(rows, columns);
      weight.plain = plain;
      const int64_t scales = weight.layout().scales;
      weight.bytes.narrow(0, scales, weight.bytes.numel() - scales).random_(95, 132);
      const at::Tensor dense = ops::reference::decoded_by_hand(weight).to(at::kFloat).to(plain);
      for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
        const at::Tensor x = at::randn({7, columns}).to(compute);
        const at::Tensor y = at::ones({7, rows}, compute);
        ASSERT_TRUE(multiply_few_rows_into(y, x, weight, /*beta=*/1, compute));
        const at::Tensor expected =
            at::mm(x.to(at::kDouble), dense.to(compute).to(at::kDouble)) + 1;
        EXPECT_LT(reference::relative_error(y, expected), compute == at::kFloat ? 1e-5 : 1e-2)
            << rows << " x " << columns << " " << c10::toString(plain);
      }
    }
  }
}

TEST(FewRows, AreNotManyNorInHalf) {
  const QuantizedMatrix weight = quantize(at::randn({8, 64}), {Kind::kNf4, 64, false});
  const at::Tensor y = at::ones({17, 8}), x = at::randn({17, 64});
  EXPECT_FALSE(multiply_few_rows_into(y, x, weight, /*beta=*/0, at::kFloat));
  EXPECT_FALSE(multiply_few_rows_into(y.narrow(0, 0, 1), x.narrow(0, 0, 1), weight, 0, at::kHalf));
  EXPECT_TRUE(at::equal(y, at::ones_like(y)));
}

// Activations of one type, products of another.
TEST(FewRows, TakeTheTypeOfTheProduct) {
  at::manual_seed(4);
  const QuantizedMatrix weight = quantize(at::randn({48, 70}), {Kind::kNf4, 64, false});
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor a = at::randn({5, 70}).to(type), c = at::zeros({5, 48}, type);
      matmul_into(c, a, weight, /*transposed=*/true, /*beta=*/0, compute);
      const at::Tensor dense = dequantize(weight, compute).to(at::kDouble);
      const at::Tensor expected = at::mm(a.to(compute).to(at::kDouble), dense.t());
      EXPECT_LT(reference::relative_error(c, expected),
                type == at::kFloat && compute == at::kFloat ? 1e-6 : 4e-3);
      if (compute == at::kBFloat16 && type == at::kFloat) {
        EXPECT_TRUE(at::equal(c, c.to(at::kBFloat16).to(at::kFloat))) << "the result is rounded";
      }
    }
  }
}

TEST(FewRows, DoNotDependOnThreads) {
  at::manual_seed(5);
  const QuantizedMatrix weight = quantize(at::randn({301, 1111}), {Kind::kNf4, 64, true});
  for (const bool transposed : {false, true}) {
    const at::Tensor a = at::randn({7, transposed ? weight.columns : weight.rows});
    const at::Tensor one = at::empty({7, transposed ? weight.rows : weight.columns});
    const at::Tensor several = at::empty_like(one);
    const int before = at::get_num_threads();
    at::set_num_threads(1);
    matmul_into(one, a, weight, transposed, /*beta=*/0, at::kFloat);
    at::set_num_threads(3);
    matmul_into(several, a, weight, transposed, /*beta=*/0, at::kFloat);
    at::set_num_threads(before);
    EXPECT_TRUE(at::equal(one, several)) << transposed;
  }
}

TEST(FewRows, OfIntegersDoNotDependOnThreads) {
  at::manual_seed(8);
  const reference::IntCase of{301, 1111, 32, {4, Element::kHalf, true, true}};
  const QuantizedMatrix weight = reference::random_ints(of, at::kBFloat16, /*even=*/true);
  const at::Tensor x = at::randn({7, of.columns});
  const at::Tensor one = at::empty({7, of.rows}), several = at::empty_like(one);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  ASSERT_TRUE(multiply_few_rows_into(one, x, weight, /*beta=*/0, at::kFloat));
  at::set_num_threads(3);
  ASSERT_TRUE(multiply_few_rows_into(several, x, weight, /*beta=*/0, at::kFloat));
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(one, several));
}

}  // namespace
}  // namespace strata::ops::quant
