// Checks of matrices whose codes come from files, on every device that is there.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "devices.h"
#include "reference.h"
#include "strata/ops/quant/quantized.h"

namespace strata::ops::reference {

inline quant::QuantizedMatrix moved(quant::QuantizedMatrix matrix, at::Device device) {
  matrix.bytes = matrix.bytes.to(device);
  return matrix;
}

// `expected` [rows, columns]: its values in fp32, to the bit.
inline void expect_decoded(const quant::QuantizedMatrix& matrix, const at::Tensor& expected) {
  for (const at::Device device : devices_under_test()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor found = quant::dequantize(moved(matrix, device), type);
      EXPECT_EQ(found.scalar_type(), type);
      EXPECT_TRUE(at::equal(found.cpu(), expected.to(type)))
          << device.str() << " " << quant::describe(matrix.format) << " " << matrix.rows << " x "
          << matrix.columns << " " << c10::toString(matrix.plain) << " " << c10::toString(type);
    }
  }
}

// Few rows and many, both ways, in both types of products, added to what was there. `dense`: the
// matrix in double.
inline void expect_products(const quant::QuantizedMatrix& weight, const at::Tensor& dense) {
  for (const at::Device device : devices_under_test()) {
    for (const int64_t rows : {1, 8, 16, 17, 40}) {
      for (const bool transposed : {false, true}) {
        const int64_t inner = transposed ? weight.columns : weight.rows;
        const int64_t width = transposed ? weight.rows : weight.columns;
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
          const at::Tensor a = at::randn({rows, inner}).to(type);
          const at::Tensor c = at::ones({rows, width}, at::device(device).dtype(type));
          quant::matmul_into(c, a.to(device), moved(weight, device), transposed, /*beta=*/1, type);
          // What is multiplied has the type of the product.
          const at::Tensor factor = (transposed ? dense.t() : dense).to(type).to(at::kDouble);
          const at::Tensor expected = at::mm(a.to(at::kDouble), factor) + 1;
          EXPECT_LT(relative_error(c.cpu(), expected), type == at::kFloat ? 1e-5 : 1e-2)
              << device.str() << " " << quant::describe(weight.format) << " " << weight.rows
              << " x " << weight.columns << " rows " << rows << " " << transposed;
        }
      }
    }
  }
}

}  // namespace strata::ops::reference
