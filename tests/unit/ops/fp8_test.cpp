// Oracle: libtorch's own type of 8 bits, and its products in double, on every device that is there.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "devices.h"
#include "fp8_reference.h"
#include "reference.h"
#include "strata/ops/quant/quantized.h"

namespace strata::ops {
namespace {

using quant::QuantizedMatrix;
using reference::relative_error;

QuantizedMatrix moved(QuantizedMatrix matrix, at::Device device) {
  matrix.bytes = matrix.bytes.to(device);
  return matrix;
}

TEST(Fp8, DecodesWhatLibtorchSays) {
  for (const at::Device device : devices_under_test()) {
    at::manual_seed(5);
    for (const auto& of : reference::kFp8Cases) {
      for (const at::ScalarType plain : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const QuantizedMatrix matrix = reference::random_fp8(of, plain);
        const at::Tensor expected = reference::fp8_by_hand(matrix);
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
          const at::Tensor found = quant::dequantize(moved(matrix, device), type);
          EXPECT_EQ(found.scalar_type(), type);
          EXPECT_TRUE(at::equal(found.cpu(), expected.to(type)))
              << device.str() << " " << of.rows << " x " << of.columns << " "
              << c10::toString(plain) << " " << c10::toString(type);
        }
      }
    }
  }
}

// Every pattern, NaN among them, and both zeros.
TEST(Fp8, AllCodes) {
  for (const at::Device device : devices_under_test()) {
    QuantizedMatrix matrix = reference::random_fp8({16, 16, 16, 16});
    matrix.codes().copy_(at::arange(256));
    matrix.scales().fill_(1);
    const at::Tensor expected = reference::fp8_by_hand(matrix);
    const at::Tensor found = quant::dequantize(moved(matrix, device), at::kFloat).cpu();
    EXPECT_TRUE(at::allclose(found, expected, 0, 0, /*equal_nan=*/true)) << device.str();
    EXPECT_TRUE(at::equal(found.signbit(), expected.signbit())) << device.str();
  }
}

// Few rows and many, both ways, in both types of products; what was there before stays or not.
TEST(Fp8, Products) {
  for (const at::Device device : devices_under_test()) {
    at::manual_seed(6);
    for (const auto& of : reference::kFp8Cases) {
      const QuantizedMatrix weight = reference::random_fp8(of, at::kBFloat16);
      const at::Tensor dense = reference::fp8_by_hand(weight).to(at::kDouble);
      for (const int64_t rows : {1, 8, 40}) {
        for (const bool transposed : {false, true}) {
          const int64_t inner = transposed ? of.columns : of.rows;
          const int64_t width = transposed ? of.rows : of.columns;
          for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
            const at::Tensor a = at::randn({rows, inner}).to(type);
            const at::Tensor c = at::ones({rows, width}, at::device(device).dtype(type));
            quant::matmul_into(c, a.to(device), moved(weight, device), transposed, /*beta=*/1,
                               type);
            const at::Tensor expected =
                at::mm(a.to(at::kDouble), transposed ? dense.t() : dense) + 1;
            EXPECT_LT(relative_error(c.cpu(), expected), type == at::kFloat ? 1e-5 : 1e-2)
                << device.str() << " " << of.rows << " x " << of.columns << " rows " << rows << " "
                << transposed;
          }
        }
      }
    }
  }
}

TEST(Fp8, NothingIsQuantisedToIt) {
  EXPECT_ANY_THROW(quant::quantize(at::ones({4, 4}), quant::fp8_format(2, 2)));
}

}  // namespace
}  // namespace strata::ops
