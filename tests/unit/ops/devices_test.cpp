// Oracle: what codes stand for (tables in double), the unfused steps, and the CPU's own results, on
// every device of devices.h: what the table of ops does not hold.
#include "devices.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference.h"
#include "several_matrices.h"
#include "strata/base/error.h"
#include "strata/ops/adamw.h"
#include "strata/ops/cross_entropy.h"
#include "strata/ops/dropout.h"
#include "strata/ops/embedding.h"
#include "strata/ops/quant/codebook.h"
#include "strata/ops/quant/dynamic.h"
#include "strata/ops/quant/int8_product.h"
#include "strata/ops/quant/quantized.h"
#include "strata/ops/square_sum.h"

namespace strata::ops {
namespace {

using quant::Format;
using quant::Kind;
using quant::QuantizedMatrix;
using reference::relative_error;

const std::vector<Format> kFormats = {{Kind::kNf4, 64, false},
                                      {Kind::kNf4, 64, true},
                                      {Kind::kFp4, 128, true},
                                      {Kind::kNf4, 32, false},
                                      {Kind::kInt8, 64, false}};

// Quantised where quantising happens, on the CPU.
QuantizedMatrix moved(QuantizedMatrix matrix, at::Device device) {
  matrix.bytes = matrix.bytes.to(device);
  return matrix;
}

// Element by element from the tables: the second-level scales too.
at::Tensor decoded_by_hand(const QuantizedMatrix& m) {
  at::Tensor dense = at::empty({m.rows, m.columns}, at::kFloat);
  const at::Tensor codes = m.codes(), scales = m.scales();
  for (int64_t i = 0; i < m.rows * m.columns; ++i) {
    float value = 0;
    if (m.format.kind == Kind::kInt8) {
      const auto code = static_cast<int8_t>(codes[i].item<uint8_t>());
      value = static_cast<float>(code) * (scales[i / m.columns].item<float>() * (1.0f / 127.0f));
    } else {
      const uint8_t byte = codes[i / 2].item<uint8_t>();
      const int64_t block = i / m.format.block;
      float scale = 0;
      if (m.format.nested) {
        const float of_map = quant::dynamic_map(true)[scales[block].item<uint8_t>()];
        scale = of_map * m.nested()[block / quant::kNestedBlock].item<float>();
        scale = scale + m.mean().item<float>();
      } else {
        scale = scales[block].item<float>();
      }
      value = quant::codes_of(m.format.kind)[i % 2 == 0 ? byte >> 4 : byte & 15] * scale;
    }
    dense.view({-1})[i] = value;
  }
  return dense;
}

TEST(Devices, DecodeWhatTheTablesSay) {
  for (const at::Device device : devices_under_test()) {
    at::manual_seed(3);
    for (const Format& format : kFormats) {
      // Odd sizes end inside a block, inside a byte and inside what a thread decodes.
      for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{3, 7}, {5, 64}, {9, 131}}) {
        const QuantizedMatrix matrix = quant::quantize(at::randn({rows, columns}), format);
        const at::Tensor expected = decoded_by_hand(matrix);
        const at::Tensor found = quant::dequantize(moved(matrix, device), at::kFloat);
        EXPECT_TRUE(at::equal(found.cpu(), expected))
            << device.str() << " " << quant::describe(format) << " " << rows << " x " << columns;
        const at::Tensor rounded = quant::dequantize(moved(matrix, device), at::kBFloat16);
        EXPECT_TRUE(at::equal(rounded.cpu(), expected.to(at::kBFloat16)));
      }
    }
  }
}

// Oracle: each by itself, on the CPU.
TEST(Devices, DecodeSeveralMatrices) {
  for (const at::Device device : devices_under_test()) {
    at::manual_seed(4);
    for (const reference::SeveralCase& of : reference::several_cases()) {
      const quant::QuantizedMatrices here = reference::random_several(of);
      quant::QuantizedMatrices there = here;
      const at::Tensor memory = at::empty({0}, at::kByte).set_(here.first.bytes.storage());
      there.first.bytes = memory.to(device).narrow(0, 0, here.first.bytes.numel());
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const at::Tensor expected = reference::several_one_by_one(here, type);
        const at::Tensor found = at::empty(expected.sizes(), at::device(device).dtype(type));
        quant::decode_into(found, there);
        EXPECT_TRUE(at::allclose(found.cpu(), expected, 0, 0, /*equal_nan=*/true))
            << device.str() << " " << quant::describe(of.format) << " " << c10::toString(type);
        const at::Tensor last = at::empty_like(found.narrow(0, 0, 1));
        quant::decode_into(last, there.range(of.count - 1, 1));
        EXPECT_TRUE(at::allclose(last.cpu(), expected.narrow(0, of.count - 1, 1), 0, 0,
                                 /*equal_nan=*/true));
      }
    }
  }
}

TEST(Devices, MultiplyByCodes) {
  for (const at::Device device : devices_under_test()) {
    at::manual_seed(5);
    for (const Format& format : kFormats) {
      for (const int64_t rows : {1, 3, 8, 40}) {
        const QuantizedMatrix w = moved(quant::quantize(at::randn({48, 264}), format), device);
        const at::Tensor x = at::randn({rows, 264}).to(device);
        const at::Tensor dense = wide(quant::dequantize(w, at::kFloat));
        for (const float beta : {0.0f, 1.0f}) {
          const at::Tensor y = at::ones({rows, 48}, x.options());
          quant::matmul_into(y, x, w, /*transposed=*/true, beta, at::kFloat);
          const at::Tensor expected = at::mm(wide(x), dense.t()) + beta;
          EXPECT_LT(relative_error(y, expected), 1e-5) << device.str() << " rows " << rows;
        }
        const at::Tensor dy = at::randn({rows, 48}).to(device);
        const at::Tensor dx = at::empty({rows, 264}, dy.options());
        quant::matmul_into(dx, dy, w, /*transposed=*/false, 0, at::kFloat);
        EXPECT_LT(relative_error(dx, at::mm(wide(dy), dense)), 1e-5);
      }
    }
  }
}

TEST(Devices, MultiplyInt8AsOnTheCpu) {
  const Format format{Kind::kInt8, 64, false};
  at::manual_seed(6);
  const QuantizedMatrix w = quant::quantize(at::randn({20, 36}), format);
  const at::Tensor x = at::randn({5, 36});
  x[1][3] = 9.0;
  const at::Tensor dense = at::mm(wide(x), wide(quant::dequantize(w, at::kFloat)).t());
  for (const at::Device device : devices_under_test()) {
    const at::Tensor y = quant::int8_product(x.to(device), moved(w, device), 6.0);
    EXPECT_LT(relative_error(y, dense), 3e-2) << device.str();
    EXPECT_LT(relative_error(y, quant::int8_product(x, w, 6.0)), 1e-5) << device.str();
  }
}

// The fused update beside decoding, updating and encoding one after the other.
TEST(Devices, UpdateStateIn8Bits) {
  const AdamWStep options{.learning_rate = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.999,
                          .eps = 1e-8,
                          .weight_decay = 0.1,
                          .step = 3,
                          .grad_scale = 0.5f};
  for (const at::Device device : devices_under_test()) {
    for (const int64_t n : {1, 255, 256, 1000, 100000}) {
      at::manual_seed(9);
      const int64_t blocks = (n + quant::kStateBlock - 1) / quant::kStateBlock;
      const at::Tensor p = at::randn({n}), g = at::randn({n});
      at::Tensor m = at::randn({n}) * 0.1, v = (at::randn({n}) * 0.1).square();
      const auto codes = [&] { return at::empty({n}, at::kByte); };
      const quant::State8Bit m8{codes(), at::empty({blocks})}, v8{codes(), at::empty({blocks})};
      quant::encode_state(m, /*is_signed=*/true, m8.codes, m8.scales);
      quant::encode_state(v, /*is_signed=*/false, v8.codes, v8.scales);
      const auto on_device = [&](const quant::State8Bit& s) {
        return quant::State8Bit{s.codes.clone().to(device), s.scales.clone().to(device)};
      };
      const quant::State8Bit m_found = on_device(m8), v_found = on_device(v8);
      const at::Tensor p_found = p.clone().to(device);
      quant::adamw_8bit_(p_found, g.to(device), m_found, v_found, options);

      quant::decode_state(m8.codes, m8.scales, /*is_signed=*/true, m);
      quant::decode_state(v8.codes, v8.scales, /*is_signed=*/false, v);
      adamw_(p, g, m, v, options);
      EXPECT_LT(relative_error(p_found, p), 1e-6) << device.str() << " " << n;
      at::Tensor m_decoded = at::empty_like(p_found), v_decoded = at::empty_like(p_found);
      quant::decode_state(m_found.codes, m_found.scales, /*is_signed=*/true, m_decoded);
      quant::decode_state(v_found.codes, v_found.scales, /*is_signed=*/false, v_decoded);
      // Neighbouring values of the map are at most a fortieth of the scale apart.
      EXPECT_LT(relative_error(m_decoded, m), 0.025) << device.str() << " " << n;
      EXPECT_LT(relative_error(v_decoded, v), 0.025) << device.str() << " " << n;
    }
  }
}

TEST(Devices, DropTheSameElements) {
  at::manual_seed(11);
  const at::Tensor x = at::ones({70, 513}), keys = at::randint(1 << 30, {70}, at::kLong);
  const at::Tensor expected = ops::dropout(x, 0.25, keys, 77);
  const double kept = expected.ne(0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(kept, 0.75, 0.01);
  for (const at::Device device : devices_under_test()) {
    EXPECT_TRUE(at::equal(ops::dropout(x.to(device), 0.25, keys.to(device), 77).cpu(), expected))
        << device.str();
  }
}

TEST(Devices, SumOverSeveralTensors) {
  at::manual_seed(13);
  std::vector<at::Tensor> parts;
  double expected = 0;
  for (const int64_t n : {1, 70000, 3, 0, 512}) {
    parts.push_back(at::randn({n}));
    expected += wide(parts.back()).square().sum().item<double>();
  }
  parts.push_back(at::full({1}, 1e25f));  // its square is beyond fp32
  expected += 1e25 * 1e25;
  for (const at::Device device : devices_under_test()) {
    std::vector<at::Tensor> on_device;
    for (const at::Tensor& part : parts) on_device.push_back(part.to(device));
    EXPECT_NEAR(square_sum(on_device) / expected, 1.0, 1e-6) << device.str();
  }
}

// On a GPU neighbours are one launch; what lies between others is none of the sum.
TEST(Devices, SumOverPartsOfOneStorage) {
  at::manual_seed(16);
  const at::Tensor all = at::randn({9000});
  all.narrow(0, 4000, 96).fill_(std::nan(""));
  for (const at::Device device : devices_under_test()) {
    const at::Tensor there = all.to(device);
    const std::vector<at::Tensor> parts = {there.narrow(0, 0, 256),     there.narrow(0, 256, 3744),
                                           there.narrow(0, 4096, 0),    there.narrow(0, 4096, 1),
                                           there.narrow(0, 4097, 4903), there.narrow(0, 0, 256)};
    double expected = 0;
    for (const at::Tensor& part : parts) {
      expected += wide(part.cpu()).square().sum().item<double>();
    }
    EXPECT_NEAR(square_sum(parts) / expected, 1.0, 1e-12) << device.str();
  }
}

TEST(Devices, CountRowsOnceForSeveralChunks) {
  at::manual_seed(14);
  const at::Tensor logits = at::randn({9, 33}) * 3;
  const at::Tensor targets = at::randint(33, {9}, at::kLong);
  targets[4] = -100;
  const CrossEntropySums whole = cross_entropy_(logits.clone(), targets, 1.0f, false);
  for (const at::Device device : devices_under_test()) {
    const at::Tensor rows = at::empty({9, cross_entropy_row_bytes()},
                                      at::TensorOptions().dtype(at::kByte).device(device));
    const at::Tensor there = logits.to(device), wanted = targets.to(device);
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 5}, {5, 4}}) {
      cross_entropy_rows_(there.narrow(0, begin, count), wanted.narrow(0, begin, count), 1.0f,
                          /*want_gradient=*/false, rows.narrow(0, begin, count));
    }
    const CrossEntropySums found = sum_cross_entropy_rows(rows.cpu());
    EXPECT_NEAR(found.loss, whole.loss, 1e-5 * whole.loss) << device.str();
    EXPECT_EQ(found.tokens, 8);
    EXPECT_EQ(found.correct, whole.correct);
  }
  EXPECT_THROW(check_targets(at::full({1}, 33, at::kLong), 33), FormatError);
  EXPECT_NO_THROW(check_targets(targets, 33));
}

// One logit that is no number must not hide in a maximum.
TEST(Devices, ShowBrokenLogits) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const at::Device device : devices_under_test()) {
    for (const float broken : {std::nanf(""), infinity}) {
      const at::Tensor logits = at::zeros({2, 40});
      logits[1][7] = broken;
      const at::Tensor there = logits.to(device);
      const CrossEntropySums sums =
          cross_entropy_(there, at::full({2}, 3, at::kLong), 1.0f, /*want_gradient=*/true);
      EXPECT_TRUE(std::isnan(sums.loss)) << device.str() << " " << broken;
      const at::Tensor is_finite = there.isfinite().all(1).cpu();
      EXPECT_TRUE(is_finite[0].item<bool>());
      EXPECT_FALSE(is_finite[1].item<bool>()) << device.str() << " " << broken;
    }
  }
}

// An id of no row: an error where the ids can be looked at, a row that cannot be mistaken
// elsewhere.
TEST(Devices, RefuseIdsOutsideTheTable) {
  for (const at::Device device : devices_under_test()) {
    const at::Tensor weight = at::ones({4, 8}, at::TensorOptions().device(device));
    const at::Tensor ids = at::full({2}, 4, at::kLong).to(device);
    if (device.is_cpu()) {
      EXPECT_THROW(ops::embedding(weight, ids), FormatError);
    } else {
      EXPECT_TRUE(ops::embedding(weight, ids).isnan().all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace strata::ops
