// Oracle: the CPU's kernels, bit for bit where nothing is summed (see kernel_arguments.h).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "../ops/fp8_reference.h"
#include "../ops/int_reference.h"
#include "../ops/mxfp4_reference.h"
#include "../ops/reference.h"
#include "../ops/several_matrices.h"
#include "strata/ops/adamw.h"
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/quant/codebook.h"
#include "strata/ops/quant/device_codes.h"
#include "strata/ops/quant/dynamic.h"
#include "strata/ops/quant/quantized.h"

namespace strata::ops::quant {
namespace {

using ops::reference::relative_error;

constexpr ops::cuda::Stream kStream = nullptr;

// Double quantisation is resolved before these kernels.
const std::vector<Format> kFormats = {{Kind::kNf4, 64, false},
                                      {Kind::kFp4, 128, false},
                                      {Kind::kNf4, 32, false},
                                      {Kind::kInt8, 64, false}};

Element element_of(at::ScalarType type) {
  return type == at::kFloat      ? Element::kFloat
         : type == at::kBFloat16 ? Element::kBFloat16
                                 : Element::kHalf;
}

// In every type, with one more element behind the end, which must stay. `expected`: in fp32.
void expect_decoded(const QuantizedMatrix& matrix, const at::Tensor& expected) {
  const int64_t numel = matrix.rows * matrix.columns;
  const at::Tensor scales = matrix.scales();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor out = at::full({numel + 1}, 5, at::TensorOptions().dtype(type));
    cuda::dequantize(codes_on_device(matrix, scales), /*count=*/1, element_of(type), out.data_ptr(),
                     kStream);
    EXPECT_TRUE(at::equal(out.narrow(0, 0, numel), expected.to(type).view({-1})))
        << describe(matrix.format) << " " << matrix.rows << " x " << matrix.columns << " "
        << c10::toString(matrix.plain) << " " << c10::toString(type);
    EXPECT_EQ(out[numel].item<float>(), 5);
  }
}

// Three of them in fp32. `dense`: the matrix in double.
void expect_few_rows(const QuantizedMatrix& matrix, const at::Tensor& dense) {
  const at::Tensor x = at::randn({3, matrix.columns});
  const at::Tensor y = at::empty({3, matrix.rows});
  cuda::multiply_few_rows(codes_on_device(matrix, matrix.scales()),
                          {.type = Element::kFloat,
                           .x = x.const_data_ptr(),
                           .x_stride = matrix.columns,
                           .y = y.data_ptr(),
                           .y_stride = matrix.rows,
                           .rows = 3,
                           .add = false},
                          kStream);
  EXPECT_LT(relative_error(y, at::mm(x.to(at::kDouble), dense.t())), 1e-5)
      << describe(matrix.format) << " " << matrix.rows << " x " << matrix.columns;
}

// Odd sizes end inside a block, inside a byte and inside what a thread decodes.
TEST(CudaQuantKernels, Dequantize) {
  at::manual_seed(1);
  for (const Format& format : kFormats) {
    for (const auto& [rows, columns] :
         std::vector<std::pair<int64_t, int64_t>>{{3, 7}, {5, 64}, {9, 131}, {70, 72}, {1, 1}}) {
      const QuantizedMatrix matrix = quantize(at::randn({rows, columns}), format);
      expect_decoded(matrix, dequantize(matrix, at::kFloat));
    }
  }
}

// Oracle: the definition of the format.
TEST(CudaQuantKernels, DecodeMxfp4) {
  at::manual_seed(4);
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 32}, {3, 64}, {131, 96}, {64, 128}, {70, 160}}) {
    const QuantizedMatrix matrix = ops::reference::random_mxfp4(rows, columns);
    const auto* bytes = matrix.bytes.const_data_ptr<uint8_t>();
    const at::Tensor dense = ops::reference::decoded_by_hand(matrix).to(at::kFloat);
    for (const bool through_half : {false, true}) {
      const at::Tensor expected = through_half ? dense.to(at::kHalf) : dense;
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const at::Tensor out = at::full({rows * columns + 1}, 5, at::TensorOptions().dtype(type));
        const Element element = element_of(type);
        cuda::decode_mxfp4({bytes, bytes + matrix.layout().scales, columns, rows, through_half},
                           /*count=*/1, element, out.mutable_data_ptr(), kStream);
        EXPECT_TRUE(at::allclose(out.narrow(0, 0, rows * columns).view({columns, rows}),
                                 expected.to(type), 0, 0, /*equal_nan=*/true))
            << rows << " x " << columns << " " << c10::toString(type) << " " << through_half;
        EXPECT_EQ(out[rows * columns].item<float>(), 5);
      }
    }
  }
}

// Oracle: libtorch's own type of 8 bits, as the CPU's kernels have it in fp8_test.cpp.
TEST(CudaQuantKernels, DecodeFp8) {
  at::manual_seed(7);
  for (const auto& of : ops::reference::kFp8Cases) {
    for (const at::ScalarType plain : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const QuantizedMatrix matrix = ops::reference::random_fp8(of, plain);
      expect_decoded(matrix, ops::reference::fp8_by_hand(matrix));
    }
  }
}

TEST(CudaQuantKernels, MultiplyFewRowsOfFp8) {
  at::manual_seed(8);
  for (const auto& of : ops::reference::kFp8Cases) {
    if (of.columns % 8 != 0) continue;
    const QuantizedMatrix matrix = ops::reference::random_fp8(of, at::kBFloat16);
    expect_few_rows(matrix, ops::reference::fp8_by_hand(matrix).to(at::kDouble));
  }
}

// Oracle: each by itself on the CPU. Of every kind, at a distance that is not their size.
TEST(CudaQuantKernels, DecodeSeveral) {
  at::manual_seed(11);
  for (const ops::reference::SeveralCase& of : ops::reference::several_cases()) {
    const QuantizedMatrices matrices = ops::reference::random_several(of);
    const QuantizedMatrix& first = matrices.first;
    const Format& format = of.format;
    const at::Tensor expected = ops::reference::several_one_by_one(matrices, at::kFloat);
    const int64_t numel = expected.numel();
    const at::Tensor out = at::full({numel + 1}, 5.0f);
    const auto* bytes = first.bytes.const_data_ptr<uint8_t>();
    if (format == kMxfp4Format) {
      cuda::decode_mxfp4({.codes = bytes,
                          .scales = bytes + first.layout().scales,
                          .rows = first.columns,
                          .columns = first.rows,
                          .through_half = false,
                          .bytes_apart = matrices.bytes_apart},
                         matrices.count, Element::kFloat, out.data_ptr(), kStream);
    } else {
      at::Tensor scales = first.scales();
      int64_t scales_apart = matrices.bytes_apart / 4;
      if (format.nested) {
        scales_apart = scales.numel();
        const at::Tensor resolved = at::empty({matrices.count * scales_apart});
        cuda::dequantize_dynamic({.map = dynamic_map(true).data(),
                                  .block = kNestedBlock,
                                  .codes = scales.const_data_ptr<uint8_t>(),
                                  .scales = first.nested().const_data_ptr<float>(),
                                  .mean = first.mean().const_data_ptr<float>(),
                                  .bytes_apart = matrices.bytes_apart},
                                 scales_apart, matrices.count, resolved.data_ptr<float>(), kStream);
        scales = resolved;
      }
      cuda::MatrixCodes codes = codes_on_device(first, scales);
      codes.bytes_apart = matrices.bytes_apart;
      codes.scales_apart = scales_apart;
      cuda::dequantize(codes, matrices.count, Element::kFloat, out.data_ptr(), kStream);
    }
    EXPECT_TRUE(
        at::allclose(out.narrow(0, 0, numel), expected.view({-1}), 0, 0, /*equal_nan=*/true))
        << describe(format);
    EXPECT_EQ(out[numel].item<float>(), 5);
  }
}

// Oracle: libtorch's own operations, as the CPU's kernels have it in ints_test.cpp.
TEST(CudaQuantKernels, DecodeInts) {
  at::manual_seed(9);
  for (const auto& of : ops::reference::kIntCases) {
    for (const at::ScalarType plain : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const QuantizedMatrix matrix = ops::reference::random_ints(of, plain);
      expect_decoded(matrix, ops::reference::ints_by_hand(matrix));
    }
  }
}

TEST(CudaQuantKernels, MultiplyFewRowsOfInts) {
  at::manual_seed(10);
  for (const auto& of : ops::reference::kIntCases) {
    if (of.columns % 8 != 0) continue;
    const QuantizedMatrix matrix = ops::reference::random_ints(of, at::kBFloat16, /*even=*/true);
    expect_few_rows(matrix, ops::reference::ints_by_hand(matrix).to(at::kDouble));
  }
}

TEST(CudaQuantKernels, MultiplyFewRows) {
  at::manual_seed(2);
  for (const Format& format : kFormats) {
    for (const auto& [out_features, columns] :
         std::vector<std::pair<int64_t, int64_t>>{{13, 264}, {48, 64}, {3, 8}}) {
      const QuantizedMatrix matrix = quantize(at::randn({out_features, columns}), format);
      const at::Tensor scales = matrix.scales();
      const at::Tensor dense = dequantize(matrix, at::kFloat).to(at::kDouble);
      for (const int64_t rows : {1, 2, 8}) {
        for (const bool add : {false, true}) {
          // Rows of wider buffers.
          const at::Tensor x = at::randn({rows, columns + 3}).narrow(1, 0, columns);
          const at::Tensor y = at::ones({rows, out_features + 2}).narrow(1, 0, out_features);
          cuda::multiply_few_rows(codes_on_device(matrix, scales),
                                  {.type = Element::kFloat,
                                   .x = x.const_data_ptr(),
                                   .x_stride = x.stride(0),
                                   .y = y.data_ptr(),
                                   .y_stride = y.stride(0),
                                   .rows = rows,
                                   .add = add},
                                  kStream);
          const at::Tensor expected = at::mm(x.to(at::kDouble), dense.t()) + (add ? 1 : 0);
          EXPECT_LT(relative_error(y, expected), 1e-5) << describe(format) << " rows " << rows;
        }
      }
    }
  }
}

TEST(CudaQuantKernels, MultiplyFewRowsRoundsTheWeight) {
  at::manual_seed(3);
  const QuantizedMatrix matrix = quantize(at::randn({20, 128}), kFormats[0]);
  const at::Tensor x = at::randn({3, 128}).to(at::kBFloat16);
  const at::Tensor y = at::empty({3, 20}, x.options());
  cuda::multiply_few_rows(codes_on_device(matrix, matrix.scales()),
                          {.type = Element::kBFloat16,
                           .x = x.const_data_ptr(),
                           .x_stride = 128,
                           .y = y.data_ptr(),
                           .y_stride = 20,
                           .rows = 3,
                           .add = false},
                          kStream);
  const at::Tensor dense = dequantize(matrix, at::kBFloat16).to(at::kDouble);
  EXPECT_LT(relative_error(y, at::mm(x.to(at::kDouble), dense.t())), 5e-3);
}

TEST(CudaQuantKernels, DynamicMap) {
  at::manual_seed(4);
  for (const bool is_signed : {true, false}) {
    const float* map = dynamic_map(is_signed).data();
    for (const int64_t n : {1, 255, 256, 1000, 70001}) {
      at::Tensor x = at::randn({n});
      if (!is_signed) x = x.square();
      if (n > 300) x.narrow(0, 256, 256 < n - 256 ? 256 : n - 256).zero_();  // a block of zeros
      if (n > 600) x[700] = std::nan("");
      const int64_t blocks = (n + kStateBlock - 1) / kStateBlock;
      const at::Tensor codes = at::empty({n}, at::kByte), scales = at::empty({blocks});
      const at::Tensor codes_found = at::empty_like(codes), scales_found = at::empty_like(scales);
      encode_state(x, is_signed, codes, scales);
      cuda::quantize_dynamic(map, is_signed, kStateBlock, x.const_data_ptr<float>(), n,
                             codes_found.data_ptr<uint8_t>(), scales_found.data_ptr<float>(),
                             kStream);
      EXPECT_TRUE(at::equal(scales_found, scales)) << n;
      EXPECT_EQ(codes_found.ne(codes).sum().item<int64_t>(), 0) << n;
      const at::Tensor decoded = at::empty({n}), found = at::empty({n});
      decode_state(codes, scales, is_signed, decoded);
      cuda::NestedScales nested{.map = map,
                                .block = kStateBlock,
                                .codes = codes.const_data_ptr<uint8_t>(),
                                .scales = scales.const_data_ptr<float>(),
                                .mean = nullptr};
      cuda::dequantize_dynamic(nested, n, /*count=*/1, found.data_ptr<float>(), kStream);
      EXPECT_TRUE(at::equal(found, decoded)) << n;
      const float mean = 0.375f;
      nested.mean = &mean;
      cuda::dequantize_dynamic(nested, n, /*count=*/1, found.data_ptr<float>(), kStream);
      EXPECT_TRUE(at::equal(found, decoded + mean)) << n;
    }
  }
}

// The fused update beside decoding, updating and encoding one after the other.
TEST(CudaQuantKernels, AdamWIn8Bits) {
  at::manual_seed(5);
  const AdamWStep options{.learning_rate = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.999,
                          .eps = 1e-8,
                          .weight_decay = 0.1,
                          .step = 3,
                          .grad_scale = 0.5f};
  for (const int64_t n : {1, 255, 256, 1000, 271000}) {
    const int64_t blocks = (n + kStateBlock - 1) / kStateBlock;
    const at::Tensor p = at::randn({n}), g = at::randn({n});
    const at::Tensor m = at::randn({n}) * 0.1, v = (at::randn({n}) * 0.1).square();
    const auto state = [&] { return State8Bit{at::empty({n}, at::kByte), at::empty({blocks})}; };
    const State8Bit m8 = state(), v8 = state();
    encode_state(m, /*is_signed=*/true, m8.codes, m8.scales);
    encode_state(v, /*is_signed=*/false, v8.codes, v8.scales);
    const auto copy = [](const State8Bit& s) {
      return State8Bit{s.codes.clone(), s.scales.clone()};
    };
    const State8Bit m_found = copy(m8), v_found = copy(v8);
    const at::Tensor p_found = p.clone(), rounded = at::empty({n}, at::kHalf);
    cuda::adamw_8bit({p_found.data_ptr<float>(),
                      g.const_data_ptr<float>(),
                      m_found.codes.data_ptr<uint8_t>(),
                      m_found.scales.data_ptr<float>(),
                      v_found.codes.data_ptr<uint8_t>(),
                      v_found.scales.data_ptr<float>(),
                      n,
                      dynamic_map(true).data(),
                      dynamic_map(false).data(),
                      {.type = Element::kHalf, .data = rounded.data_ptr()}},
                     factors_of(options), kStream);
    EXPECT_TRUE(at::equal(rounded, p_found.to(at::kHalf))) << n;
    adamw_8bit_(p, g, m8, v8, options);
    EXPECT_LT(relative_error(p_found, p), 1e-6) << n;
    EXPECT_LT(relative_error(m_found.scales, m8.scales), 1e-6) << n;
    EXPECT_LT(relative_error(v_found.scales, v8.scales), 1e-6) << n;
    // A value beside a border may fall to either side.
    EXPECT_LE(m_found.codes.ne(m8.codes).sum().item<int64_t>(), 1 + n / 1000) << n;
    EXPECT_LE(v_found.codes.ne(v8.codes).sum().item<int64_t>(), 1 + n / 1000) << n;
  }
}

}  // namespace
}  // namespace strata::ops::quant
