// Oracle: libtorch's own operations, element by element, and its products in double, on every
// device that is there.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "devices.h"
#include "int_reference.h"
#include "reference.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/quant/quantized.h"

namespace strata::ops {
namespace {

using quant::QuantizedMatrix;
using reference::relative_error;

QuantizedMatrix on_device(QuantizedMatrix matrix, at::Device device) {
  matrix.bytes = matrix.bytes.to(device);
  return matrix;
}

TEST(Ints, DecodesToTheBit) {
  for (const at::Device device : devices_under_test()) {
    at::manual_seed(5);
    for (const auto& of : reference::kIntCases) {
      for (const at::ScalarType plain : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const QuantizedMatrix matrix = reference::random_ints(of, plain);
        const at::Tensor expected = reference::ints_by_hand(matrix);
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
          const at::Tensor found = quant::dequantize(on_device(matrix, device), type);
          EXPECT_EQ(found.scalar_type(), type);
          EXPECT_TRUE(at::equal(found.cpu(), expected.to(type)))
              << device.str() << " " << quant::describe(matrix.format) << " " << of.rows << " x "
              << of.columns << " " << c10::toString(plain) << " " << c10::toString(type);
        }
      }
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

// Few rows and many, both ways, in both types of products; what was there before stays or not.
TEST(Ints, Products) {
  for (const at::Device device : devices_under_test()) {
    at::manual_seed(6);
    for (const auto& of : reference::kIntCases) {
      const QuantizedMatrix weight = reference::random_ints(of, at::kBFloat16, /*even=*/true);
      const at::Tensor dense = reference::ints_by_hand(weight).to(at::kDouble);
      for (const int64_t rows : {1, 8, 40}) {
        for (const bool transposed : {false, true}) {
          const int64_t inner = transposed ? of.columns : of.rows;
          const int64_t width = transposed ? of.rows : of.columns;
          for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
            const at::Tensor a = at::randn({rows, inner}).to(type);
            const at::Tensor c = at::ones({rows, width}, at::device(device).dtype(type));
            quant::matmul_into(c, a.to(device), on_device(weight, device), transposed, /*beta=*/1,
                               type);
            const at::Tensor expected =
                at::mm(a.to(at::kDouble), transposed ? dense.t() : dense) + 1;
            EXPECT_LT(relative_error(c.cpu(), expected), type == at::kFloat ? 1e-5 : 1e-2)
                << device.str() << " " << quant::describe(weight.format) << " " << of.rows << " x "
                << of.columns << " rows " << rows << " " << transposed;
          }
        }
      }
    }
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
