// Oracle: libtorch's own operations, element by element, and its products in double, on every
// device that is there.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "codes_of_files.h"
#include "int_reference.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/quant/quantized.h"

namespace strata::ops {
namespace {

using quant::QuantizedMatrix;
TEST(Ints, DecodesToTheBit) {
  at::manual_seed(5);
  for (const auto& of : reference::kIntCases) {
    for (const at::ScalarType plain : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const QuantizedMatrix matrix = reference::random_ints(of, plain);
      reference::expect_decoded(matrix, reference::ints_by_hand(matrix));
    }
  }
}

// As panels of products read them: from any column on, also fewer columns than a row has groups.
TEST(Ints, PartsOfRowsAreThoseOfTheWhole) {
  at::manual_seed(7);
  for (const auto& of : reference::kIntCases) {
    const QuantizedMatrix matrix = reference::random_ints(of, at::kBFloat16);
    const auto* bytes = matrix.bytes.const_data_ptr<uint8_t>();
    const quant::cpu::MatrixCodes codes{
        .kind = quant::Kind::kInts,
        .block = of.group,
        .columns = of.columns,
        .codes = bytes,
        .scales = nullptr,
        .through = Element::kBFloat16,
        .ints = quant::int_groups_of(matrix.format, of.rows, of.columns, bytes)};
    const at::Tensor expected = reference::ints_by_hand(matrix);
    for (int64_t begin = 0; begin < of.columns; begin += 1 + begin / 8) {
      for (int64_t count = 1; count <= of.columns - begin; count += 1 + count / 8) {
        const int64_t row = (begin + count) % of.rows;
        at::Tensor found = at::full({count + 1}, 5.0f);
        quant::cpu::dequantize(codes, row * of.columns + begin, count, found.data_ptr<float>());
        ASSERT_TRUE(at::equal(found.narrow(0, 0, count), expected[row].narrow(0, begin, count)))
            << quant::describe(matrix.format) << " " << of.columns << ": " << count << " from "
            << begin;
        ASSERT_EQ(found[count].item<float>(), 5);
      }
    }
  }
}

TEST(Ints, Products) {
  at::manual_seed(6);
  for (const auto& of : reference::kIntCases) {
    const QuantizedMatrix weight = reference::random_ints(of, at::kBFloat16, /*even=*/true);
    reference::expect_products(weight, reference::ints_by_hand(weight).to(at::kDouble));
  }
}

TEST(Ints, TakeWhatTheirPartsTake) {
  const auto bytes = [](int64_t group, const quant::IntParts& parts) {
    return quant::stored_bytes(quant::int_format(group, parts), 64, 256);
  };
  const int64_t codes = 64 * 128, scales = 64 * 2 * 2;
  EXPECT_EQ(bytes(128, {4, Element::kHalf, false, false}), codes + scales);
  EXPECT_EQ(bytes(128, {4, Element::kHalf, true, false}), codes + scales + 64 * 2);
  EXPECT_EQ(bytes(128, {4, Element::kFloat, true, true}), codes + 2 * scales + 64 * 2 + 256 * 4);
  EXPECT_EQ(bytes(256, {8, Element::kBFloat16, false, false}), 2 * codes + scales / 2);
}

TEST(Ints, NothingIsQuantisedToThem) {
  EXPECT_ANY_THROW(quant::quantize(at::ones({4, 4}), quant::int_format(2, {})));
}

}  // namespace
}  // namespace strata::ops
