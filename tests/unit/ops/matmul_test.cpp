// Oracle: ATen's product in double; bit-equality between numbers of threads.
#include "strata/ops/matmul/matmul.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "reference.h"
#include "strata/base/error.h"
#include "strata/ops/quant/quantized.h"

namespace strata::ops {
namespace {

struct Row {
  int64_t rows, columns, inner;
};
const Row kRows[] = {{1, 1, 1},       {1, 41, 133},   {2, 40, 7},     {16, 1, 3},
                     {17, 33, 5},     {96, 32, 256},  {100, 31, 257}, {200, 1030, 64},
                     {13, 100, 600},  {300, 65, 513}, {0, 4, 4},      {40, 4, 0},
                     {24, 64, 12},    {3, 70, 300},   {17, 1, 40},    {64, 1100, 300},
                     {383, 200, 270}, {385, 90, 20},  {500, 8, 1100}, {130, 16, 513}};

// What a test chooses ends with it.
class Chosen {
 public:
  explicit Chosen(CpuProducts products) { choose_cpu_products(products); }
  ~Chosen() { choose_cpu_products(before_); }

 private:
  CpuProducts before_ = cpu_products();
};

class Matmul : public testing::TestWithParam<std::tuple<at::ScalarType, CpuProducts>> {
  Chosen chosen_{std::get<1>(GetParam())};
};
class OwnMatmul : public testing::TestWithParam<at::ScalarType> {
  Chosen chosen_{CpuProducts::kOwn};
};

// Rows 5 elements wider than needed, so that strides are not sizes.
at::Tensor strided(int64_t rows, int64_t columns, at::ScalarType type) {
  return at::randn({rows, columns + 5}).to(type).narrow(1, 2, columns);
}

TEST_P(Matmul, EqualsDouble) {
  at::manual_seed(2);
  const at::ScalarType type = std::get<0>(GetParam());
  const double tolerance = type == at::kFloat ? 1e-5 : 1e-2;
  for (const auto& [rows, columns, inner] : kRows) {
    for (const Transposes t :
         {Transposes{false, false}, {true, false}, {false, true}, {true, true}}) {
      SCOPED_TRACE(testing::Message()
                   << rows << "x" << columns << "x" << inner << " transposed " << t.a << t.b);
      const at::Tensor a = t.a ? strided(inner, rows, type) : strided(rows, inner, type);
      const at::Tensor b = t.b ? strided(columns, inner, type) : strided(inner, columns, type);
      const at::Tensor a64 = a.to(at::kDouble), b64 = b.to(at::kDouble);
      const at::Tensor expected = at::mm(t.a ? a64.t() : a64, t.b ? b64.t() : b64);
      EXPECT_LT(reference::relative_error(ops::matmul(a, b, t), expected), tolerance);
      at::Tensor c = strided(rows, columns, at::kFloat);
      const at::Tensor sum = expected + c.to(at::kDouble);
      matmul_into(c, a, b, t, /*beta=*/1);
      EXPECT_LT(reference::relative_error(c, sum), tolerance);
      at::Tensor same = strided(rows, columns, type);
      const at::Tensor same_sum = expected + same.to(at::kDouble);
      matmul_into(same, a, b, t, /*beta=*/1);
      EXPECT_LT(reference::relative_error(same, same_sum), tolerance);
      matmul_into(same, a, b, t, /*beta=*/0);
      EXPECT_LT(reference::relative_error(same, expected), tolerance);
    }
  }
}

TEST_P(Matmul, TakesAnyView) {
  at::manual_seed(10);
  const double tolerance = std::get<0>(GetParam()) == at::kFloat ? 1e-5 : 1e-2;
  const at::Tensor a = at::randn({70, 90}).to(std::get<0>(GetParam())),
                   b = at::randn({50, 90}).to(std::get<0>(GetParam()));
  const at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble).t());
  EXPECT_LT(reference::relative_error(ops::matmul(a, b.t()), expected), tolerance);
  EXPECT_LT(reference::relative_error(ops::matmul(a.t(), b.t(), {.a = true}), expected), tolerance);
  const at::Tensor ones = at::ones({1, 1}, a.options()).expand({70, 90});
  EXPECT_LT(
      reference::relative_error(ops::matmul(ones, b, {.b = true})[3], b.to(at::kDouble).sum(1)),
      tolerance);
  const at::Tensor sparse = at::randn({70, 180}).to(std::get<0>(GetParam())).slice(1, 0, 180, 2);
  EXPECT_LT(reference::relative_error(ops::matmul(sparse, b, {.b = true}),
                                      at::mm(sparse.to(at::kDouble), b.to(at::kDouble).t())),
            tolerance);
}

// Many rows share packed columns, few rows are packed themselves.
TEST_P(OwnMatmul, DoesNotDependOnThreads) {
  at::manual_seed(3);
  const at::Tensor b = at::randn({1500, 520}).to(GetParam());
  const int threads = at::get_num_threads();
  for (const int64_t rows : {1, 16, 130, 384, 700}) {
    // libtorch's: MKL splits the sums of Intel's processors by threads.
    if (rows == 1 && GetParam() == at::kFloat) continue;
    const at::Tensor a = at::randn({rows, 520}).to(GetParam());
    for (const at::ScalarType type : {at::kFloat, GetParam()}) {
      std::vector<at::Tensor> results;
      for (int n : {1, 2, 5}) {
        at::set_num_threads(n);
        results.push_back(at::zeros({rows, 1500}, type));
        matmul_into(results.back(), a, b, {.b = true}, 0);
      }
      at::set_num_threads(threads);
      EXPECT_TRUE(at::equal(results[0], results[1])) << rows;
      EXPECT_TRUE(at::equal(results[0], results[2])) << rows;
    }
  }
}

// Whole tiles or not: all are summed alike, in ranges of any length.
TEST(MatmulRows, FewGetTheBitsThatTheyGetAmongMany) {
  const Chosen own(CpuProducts::kOwn);
  at::manual_seed(4);
  const at::Tensor a = at::randn({480, 1300}), b = at::randn({1101, 1300});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType c_type : {at::kFloat, type}) {
      for (const Transposes t : {Transposes{.b = true}, Transposes{.a = true}}) {
        const auto left = [&](int64_t rows) {
          const at::Tensor part = a.to(type).narrow(0, 0, rows);
          return t.a ? part.t().contiguous() : part;
        };
        const at::Tensor right = t.b ? b.to(type) : b.to(type).t().contiguous();
        at::Tensor many = at::ones({480, 1101}, c_type);
        matmul_into(many, left(480), right, t, /*beta=*/1);
        for (const int64_t rows : {17, 48, 100, 384}) {
          at::Tensor few = at::ones({rows, 1101}, c_type);
          matmul_into(few, left(rows), right, t, /*beta=*/1);
          EXPECT_TRUE(at::equal(many.narrow(0, 0, rows), few)) << rows << type << c_type;
        }
      }
    }
  }
  EXPECT_LT(matmul_scratch_bytes(384, 1101, 1300, at::kFloat, at::kFloat),
            matmul_scratch_bytes(480, 1101, 1300, at::kFloat, at::kFloat));
}

TEST_P(Matmul, ThinFactorsAddWhatTheirProductIs) {
  at::manual_seed(5);
  const at::ScalarType type = std::get<0>(GetParam());
  const double tolerance = type == at::kFloat ? 1e-5 : 1e-2;
  for (const int64_t tokens : {5, 77}) {
    const at::Tensor x = at::randn({tokens, 45}).to(type), a = at::randn({3, 45}).to(type);
    const at::Tensor b = at::randn({50, 3}).to(type), wide = at::randn({tokens, 50});
    const at::Tensor hidden = thin_product(x, a.t());
    EXPECT_EQ(hidden.scalar_type(), type);
    const at::Tensor expected = at::mm(x.to(at::kDouble), a.to(at::kDouble).t());
    EXPECT_LT(reference::relative_error(hidden, expected), tolerance);
    for (const at::ScalarType of_sum : {type, at::kFloat}) {
      at::Tensor sum = wide.to(of_sum, /*non_blocking=*/false, /*copy=*/true);
      const at::Tensor total =
          sum.to(at::kDouble) + 0.7 * at::mm(hidden.to(at::kDouble), b.to(at::kDouble).t());
      add_thin_product_(sum, hidden, b.t(), 0.7);
      EXPECT_LT(reference::relative_error(sum, total), tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Storage, Matmul,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16),
                                          testing::Values(CpuProducts::kOwn, CpuProducts::kMkl)));
INSTANTIATE_TEST_SUITE_P(Storage, OwnMatmul, testing::Values(at::kFloat, at::kBFloat16));

// More rows than are decoded at a time, and codes whose blocks cross rows.
TEST(MatmulCodes, EqualsTheDecodedWeightInDouble) {
  at::manual_seed(6);
  const at::Tensor weight = at::randn({1100, 330});
  for (const CpuProducts products : {CpuProducts::kOwn, CpuProducts::kMkl}) {
    const Chosen chosen(products);
    for (const quant::Format& format :
         {quant::Format{.kind = quant::Kind::kNf4, .block = 64, .nested = true},
          quant::Format{.kind = quant::Kind::kInt8}}) {
      const quant::QuantizedMatrix codes = quant::quantize(weight, format);
      const at::Tensor decoded = quant::dequantize(codes, at::kFloat).to(at::kDouble);
      for (const bool transposed : {true, false}) {
        const at::Tensor a = strided(50, transposed ? 330 : 1100, at::kFloat);
        const at::Tensor product = at::mm(a.to(at::kDouble), transposed ? decoded.t() : decoded);
        for (const float beta : {0.0f, 1.0f}) {
          at::Tensor c = strided(50, transposed ? 1100 : 330, at::kFloat);
          const at::Tensor expected = product + beta * c.to(at::kDouble);
          quant::matmul_into(c, a, codes, transposed, beta, at::kFloat);
          EXPECT_LT(reference::relative_error(c, expected), 1e-5)
              << quant::describe(format) << transposed << beta;
        }
      }
    }
  }
}

TEST(MatmulErrors, NameTheShapes) {
  EXPECT_THROW(ops::matmul(at::zeros({3, 4}), at::zeros({3, 4})), InternalError);
  EXPECT_THROW(matmul_into(at::zeros({3, 3}), at::zeros({3, 4}), at::zeros({4, 4}), {}, 0),
               InternalError);
}

}  // namespace
}  // namespace strata::ops
