// Oracle: the definition of the format, code by code, on every device that is there.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "devices.h"
#include "mxfp4_reference.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/quant/mxfp4.h"

namespace strata::ops {
namespace {

using quant::QuantizedMatrix;

// Odd numbers of rows end inside a tile; one block, and more than a tile of them.
const std::vector<std::pair<int64_t, int64_t>> kShapes{
    {1, 32}, {3, 64}, {131, 96}, {64, 128}, {70, 2080}};

at::Tensor decoded(const QuantizedMatrix& matrix, at::Device device, at::ScalarType type,
                   bool through_half) {
  const at::Tensor out =
      at::full({matrix.columns * matrix.rows + 1}, 5, at::device(device).dtype(type));
  QuantizedMatrix moved = matrix;
  moved.bytes = matrix.bytes.to(device);
  quant::decode_mxfp4_into(
      out.narrow(0, 0, matrix.columns * matrix.rows).view({matrix.columns, matrix.rows}), moved,
      through_half);
  EXPECT_EQ(out[matrix.columns * matrix.rows].item<float>(), 5);
  return out.narrow(0, 0, matrix.columns * matrix.rows).view({matrix.columns, matrix.rows}).cpu();
}

TEST(Mxfp4, DecodesWhatTheDefinitionSays) {
  for (const at::Device device : devices_under_test()) {
    at::manual_seed(4);
    for (const auto& [rows, columns] : kShapes) {
      const QuantizedMatrix matrix = reference::random_mxfp4(rows, columns);
      const at::Tensor expected = reference::decoded_by_hand(matrix).to(at::kFloat);
      std::vector<at::ScalarType> types{at::kFloat, at::kBFloat16};
      if (device.is_cuda()) types.push_back(at::kHalf);
      for (const at::ScalarType type : types) {
        EXPECT_TRUE(at::allclose(decoded(matrix, device, type, false), expected.to(type), 0, 0,
                                 /*equal_nan=*/true))
            << device.str() << " " << rows << " x " << columns << " " << c10::toString(type);
        EXPECT_TRUE(at::allclose(decoded(matrix, device, type, true),
                                 expected.to(at::kHalf).to(type), 0, 0,
                                 /*equal_nan=*/true))
            << device.str() << " " << rows << " x " << columns << " " << c10::toString(type);
      }
    }
  }
}

// Every scale: the smallest are subnormal in fp32 and bf16.
TEST(Mxfp4, AllScales) {
  QuantizedMatrix matrix = reference::random_mxfp4(256, 32);
  matrix.bytes.narrow(0, matrix.layout().scales, 256).copy_(at::arange(256));
  const at::Tensor expected = reference::decoded_by_hand(matrix).to(at::kFloat);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    EXPECT_TRUE(at::allclose(decoded(matrix, at::kCPU, type, false), expected.to(type), 0, 0,
                             /*equal_nan=*/true));
  }
}

TEST(Mxfp4, Windows) {
  at::manual_seed(6);
  const QuantizedMatrix matrix = reference::random_mxfp4(70, 96);
  const at::Tensor expected = reference::decoded_by_hand(matrix).to(at::kFloat);
  const auto* bytes = matrix.bytes.const_data_ptr<uint8_t>();
  for (const quant::cpu::Window w :
       {quant::cpu::Window{5, 6, 3, 69}, {31, 33, 0, 70}, {64, 96, 69, 70}}) {
    const int64_t rows = w.last_row - w.first_row, columns = w.last_column - w.first_column;
    const at::Tensor out = at::full({rows, columns + 2}, 5.0f);
    quant::cpu::decode_mxfp4({bytes, bytes + matrix.layout().scales, matrix.columns, matrix.rows},
                             w, {Element::kFloat, out.mutable_data_ptr(), columns + 2});
    EXPECT_TRUE(at::allclose(
        out.narrow(1, 0, columns),
        expected.slice(0, w.first_row, w.last_row).slice(1, w.first_column, w.last_column), 0, 0,
        /*equal_nan=*/true));
    EXPECT_TRUE(out.narrow(1, columns, 2).eq(5).all().item<bool>());
  }
}

}  // namespace
}  // namespace strata::ops
