// Oracle: ATen's product in double; bit-equality between numbers of threads. bf16 is multiplied in
// every way that the processor has, and in the tiles of Intel's matrix unit on any x86
// (emulated_tiles.h).
#include "strata/ops/matmul/matmul.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <vector>

#include "chosen_bf16.h"
#include "reference.h"
#include "strata/base/error.h"
#include "strata/ops/instruction_set.h"
#include "strata/ops/matmul/bf16_products.h"
#include "strata/ops/matmul/block_product.h"
#include "strata/ops/quant/quantized.h"

namespace strata::ops {
namespace {

struct Row {
  int64_t rows, columns, inner;
};
const Row kRows[] = {{1, 1, 1},
                     {1, 41, 133},
                     {2, 40, 7},
                     {16, 1, 3},
                     {17, 33, 5},
                     {96, 32, 256},
                     {100, 31, 257},
                     {200, 1030, 64},
                     {13, 100, 600},
                     {300, 65, 513},
                     {0, 4, 4},
                     {40, 4, 0},
                     {24, 64, 12},
                     {3, 70, 300},
                     {17, 1, 40},
                     {64, 1100, 300},
                     {383, 200, 270},
                     {385, 90, 20},
                     {500, 8, 1100},
                     {130, 16, 513},
                     // Thin: rows read in place, tiles rounded at once (also behind the first
                     // 1024 columns), gradients as transposes with a last chunk of few rows.
                     {500, 100, 16},
                     {1200, 24, 544},
                     {390, 190, 1088},
                     {20, 2100, 70},
                     {400, 1100, 32},
                     {1030, 40, 1100}};

// Who multiplies what.
struct Method {
  const char* name;
  at::ScalarType type = at::kFloat;
  CpuProducts products = CpuProducts::kOwn;
  Bf16Products bf16 = Bf16Products::kConverted;
};
std::ostream& operator<<(std::ostream& out, const Method& method) { return out << method.name; }

std::vector<Method> own_methods() {
  std::vector<Method> methods = {{.name = "fp32"}};
  for (const Bf16Products products : reference::all_bf16_products()) {
    methods.push_back(
        {.name = reference::name_of(products), .type = at::kBFloat16, .bf16 = products});
  }
  return methods;
}
std::vector<Method> methods() {
  std::vector<Method> methods = own_methods();
  methods.push_back({.name = "fp32_mkl", .products = CpuProducts::kMkl});
  return methods;
}

// What a test chooses ends with it.
class Chosen {
 public:
  explicit Chosen(CpuProducts products, Bf16Products bf16 = bf16_products()) : bf16_(bf16) {
    choose_cpu_products(products);
  }
  explicit Chosen(const Method& method) : Chosen(method.products, method.bf16) {}
  ~Chosen() { choose_cpu_products(before_); }

 private:
  CpuProducts before_ = cpu_products();
  reference::ChosenBf16 bf16_;
};

class Matmul : public testing::TestWithParam<Method> {
  Chosen chosen_{GetParam()};
};
class OwnMatmul : public Matmul {};

// Rows 5 or 6 elements wider than needed, so that strides are not sizes, and odd as well as even.
at::Tensor strided(int64_t rows, int64_t columns, at::ScalarType type) {
  const int64_t more = columns % 3 == 0 ? 5 : 6;
  return at::randn({rows, columns + more}).to(type).narrow(1, 2, columns);
}

TEST_P(Matmul, EqualsDouble) {
  at::manual_seed(2);
  const at::ScalarType type = GetParam().type;
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
      matmul_into(c, a, b, t, /*beta=*/0);
      EXPECT_LT(reference::relative_error(c, expected), tolerance);
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
  const double tolerance = GetParam().type == at::kFloat ? 1e-5 : 1e-2;
  const at::Tensor a = at::randn({70, 90}).to(GetParam().type),
                   b = at::randn({50, 90}).to(GetParam().type);
  const at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble).t());
  EXPECT_LT(reference::relative_error(ops::matmul(a, b.t()), expected), tolerance);
  EXPECT_LT(reference::relative_error(ops::matmul(a.t(), b.t(), {.a = true}), expected), tolerance);
  const at::Tensor ones = at::ones({1, 1}, a.options()).expand({70, 90});
  EXPECT_LT(
      reference::relative_error(ops::matmul(ones, b, {.b = true})[3], b.to(at::kDouble).sum(1)),
      tolerance);
  // Pairs of bf16 that begin in the middle of four bytes.
  const at::Tensor odd = at::randn({400, 66}).to(GetParam().type).narrow(1, 1, 64),
                   thin = at::randn({24, 64}).to(GetParam().type);
  EXPECT_LT(reference::relative_error(ops::matmul(odd, thin, {.b = true}),
                                      at::mm(odd.to(at::kDouble), thin.to(at::kDouble).t())),
            tolerance);
  const at::Tensor sparse = at::randn({70, 180}).to(GetParam().type).slice(1, 0, 180, 2);
  EXPECT_LT(reference::relative_error(ops::matmul(sparse, b, {.b = true}),
                                      at::mm(sparse.to(at::kDouble), b.to(at::kDouble).t())),
            tolerance);
}

// A branch's products, which read rows in place or are computed as their transposes.
TEST_P(OwnMatmul, ThinProductsDoNotDependOnThreads) {
  at::manual_seed(4);
  const at::ScalarType type = GetParam().type;
  const at::Tensor x = at::randn({2100, 544}).to(type), thin = at::randn({24, 544}).to(type),
                   h = at::randn({2100, 24}).to(type), sum = at::randn({544, 24});
  const int threads = at::get_num_threads();
  std::vector<std::vector<at::Tensor>> results;
  for (const int n : {1, 2, 5}) {
    at::set_num_threads(n);
    std::vector<at::Tensor>& of_n = results.emplace_back();
    of_n.push_back(ops::matmul(x, thin, {.b = true}));
    of_n.push_back(x.clone());
    matmul_into(of_n.back(), h, thin, {}, /*beta=*/1);
    of_n.push_back(sum.clone());
    matmul_into(of_n.back(), x, h, {.a = true}, /*beta=*/1);
  }
  at::set_num_threads(threads);
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << i;
    EXPECT_TRUE(at::equal(results[0][i], results[2][i])) << i;
  }
}

// Many rows share packed columns, few rows are packed themselves.
TEST_P(OwnMatmul, DoesNotDependOnThreads) {
  at::manual_seed(3);
  const at::Tensor b = at::randn({1500, 520}).to(GetParam().type);
  const int threads = at::get_num_threads();
  for (const int64_t rows : {1, 16, 130, 384, 700}) {
    // libtorch's: MKL splits the sums of Intel's processors by threads.
    if (rows == 1 && GetParam().type == at::kFloat) continue;
    const at::Tensor a = at::randn({rows, 520}).to(GetParam().type);
    for (const at::ScalarType type : {at::kFloat, GetParam().type}) {
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
TEST_P(OwnMatmul, FewRowsGetTheBitsThatTheyGetAmongMany) {
  at::manual_seed(4);
  const at::ScalarType type = GetParam().type;
  const at::Tensor a = at::randn({480, 1300}).to(type), b = at::randn({1101, 1300}).to(type);
  for (const at::ScalarType c_type : {at::kFloat, type}) {
    for (const Transposes t : {Transposes{.b = true}, Transposes{.a = true}}) {
      const auto left = [&](int64_t rows) {
        const at::Tensor part = a.narrow(0, 0, rows);
        return t.a ? part.t().contiguous() : part;
      };
      const at::Tensor right = t.b ? b : b.t().contiguous();
      at::Tensor many = at::ones({480, 1101}, c_type);
      matmul_into(many, left(480), right, t, /*beta=*/1);
      for (const int64_t rows : {17, 48, 100, 384}) {
        at::Tensor few = at::ones({rows, 1101}, c_type);
        matmul_into(few, left(rows), right, t, /*beta=*/1);
        EXPECT_TRUE(at::equal(many.narrow(0, 0, rows), few)) << rows << c_type;
      }
    }
  }
  EXPECT_LT(matmul_scratch_bytes(384, 1101, 1300, at::kFloat, at::kFloat),
            matmul_scratch_bytes(480, 1101, 1300, at::kFloat, at::kFloat));
}

TEST_P(Matmul, ThinFactorsAddWhatTheirProductIs) {
  at::manual_seed(5);
  const at::ScalarType type = GetParam().type;
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

INSTANTIATE_TEST_SUITE_P(Methods, Matmul, testing::ValuesIn(methods()),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Methods, OwnMatmul, testing::ValuesIn(own_methods()),
                         testing::PrintToStringParamName());

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

// What decides whether the matrix unit is used; integers whose sums are exact.
TEST(MatmulTiles, AreFoundToBeRight) {
  if (kHasX86Kernels) {
    const Chosen tiles(CpuProducts::kOwn, Bf16Products::kTiles);
    EXPECT_TRUE(cpu::tile_product_is_right());
  } else {
    EXPECT_FALSE(cpu::has_tile_product());
  }
}

TEST(MatmulErrors, NameTheShapes) {
  EXPECT_THROW(ops::matmul(at::zeros({3, 4}), at::zeros({3, 4})), InternalError);
  EXPECT_THROW(matmul_into(at::zeros({3, 3}), at::zeros({3, 4}), at::zeros({4, 4}), {}, 0),
               InternalError);
}

}  // namespace
}  // namespace strata::ops
