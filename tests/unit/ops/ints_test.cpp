// Oracle: libtorch's own operations, element by element, and its products in double, on every
// device that is there.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "codes_of_files.h"
#include "int_reference.h"
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
