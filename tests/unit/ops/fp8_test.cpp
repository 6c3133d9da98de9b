// Oracle: libtorch's own type of 8 bits, and its products in double, on every device that is there.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "codes_of_files.h"
#include "devices.h"
#include "fp8_reference.h"
#include "strata/ops/quant/quantized.h"

namespace strata::ops {
namespace {

using quant::QuantizedMatrix;
using reference::moved;

TEST(Fp8, DecodesWhatLibtorchSays) {
  at::manual_seed(5);
  for (const auto& of : reference::kFp8Cases) {
    for (const at::ScalarType plain : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const QuantizedMatrix matrix = reference::random_fp8(of, plain);
      reference::expect_decoded(matrix, reference::fp8_by_hand(matrix));
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
    const at::Tensor is_number = expected.isnan().logical_not();  // the sign of a NaN says nothing
    EXPECT_TRUE(at::equal(found.signbit().logical_and(is_number),
                          expected.signbit().logical_and(is_number)))
        << device.str();
  }
}

TEST(Fp8, Products) {
  at::manual_seed(6);
  for (const auto& of : reference::kFp8Cases) {
    const QuantizedMatrix weight = reference::random_fp8(of, at::kBFloat16);
    reference::expect_products(weight, reference::fp8_by_hand(weight).to(at::kDouble));
  }
}

TEST(Fp8, NothingIsQuantisedToIt) {
  EXPECT_ANY_THROW(quant::quantize(at::ones({4, 4}), quant::fp8_format(2, 2)));
}

}  // namespace
}  // namespace strata::ops
