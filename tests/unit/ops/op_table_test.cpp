// Oracle: the formulas in double (reference.h), and central differences of the ops themselves.
//
//   test_ops            every test
//   test_ops --guard behind    every test, of tensors with a page without rights behind each
//                              (or before: guarded_memory.h)
//   test_ops --perf     the table again, with times of one thread (and of the GPU, where there is
//                       one; `--perf cuda`: of it alone) beside those of a copy
#include "op_table.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>

#include "devices.h"
#include "guarded_memory.h"

namespace strata::ops {
namespace {

// Relative to the largest value; bf16 keeps 8 bits of every result.
double tolerance_of(at::ScalarType type) {
  return type == at::kFloat ? 1e-5 : type == at::kHalf ? 5e-3 : 2e-2;
}

std::string name_of(const OpRow& row, const OpSize& size, at::ScalarType type, at::Device device) {
  return fmt::format("{:<6} {:<19} {:<8} {:>6} x {:>5} x {:>4}", device.str(), row.name,
                     c10::toString(type), size.rows, size.columns, size.third);
}

// The largest relative difference between sum(gradient * direction) and the slope along random
// directions. Central differences in fp32: the step is a compromise between curvature and rounding.
double slope_error(const Slope& slope) {
  const double step = 1e-2;
  double worst = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const at::Tensor direction = at::randn_like(slope.x);
    const double rise =
        slope.value(slope.x + direction * step) - slope.value(slope.x - direction * step);
    const double expected =
        (slope.gradient.to(at::kDouble) * direction.to(at::kDouble)).sum().item<double>();
    worst =
        std::max(worst, std::abs(rise / (2 * step) - expected) / std::max(1.0, std::abs(expected)));
  }
  return worst;
}

TEST(OpTable, EqualsDouble) {
  for (const at::Device device : devices_under_test()) {
    for (const OpRow& row : op_table()) {
      at::manual_seed(1);  // another row changes none of the others' values
      for (at::ScalarType type : types_on(row.types, row.narrow_on_gpu, device)) {
        for (const OpSize& size : row.sizes) {
          for (const Comparison& comparison : row.make(size, type, device).comparisons) {
            EXPECT_LT(error_of(comparison), tolerance_of(type))
                << name_of(row, size, type, device) << ": " << comparison.what;
          }
        }
      }
    }
  }
}

TEST(OpTable, GradientsAreSlopes) {
  for (const at::Device device : devices_under_test()) {
    for (const OpRow& row : op_table()) {
      at::manual_seed(4);
      // Small sizes: sums of many terms in fp32 would drown the slope.
      for (const OpSize& size : row.sizes) {
        if (size.rows * size.columns > 2000) continue;
        for (const Slope& slope : row.make(size, at::kFloat, device).slopes) {
          EXPECT_LT(slope_error(slope), 2e-2)
              << name_of(row, size, at::kFloat, device) << ": " << slope.what;
        }
      }
    }
  }
}

TEST(OpTable, HasEveryOpOnceAndEveryGradientASlope) {
  std::vector<std::string> names;
  for (const OpRow& row : op_table()) {
    names.push_back(row.name);
    if (!row.name.ends_with("_backward")) continue;
    EXPECT_FALSE(row.make(row.sizes[1], at::kFloat, at::kCPU).slopes.empty()) << row.name;
  }
  for (const char* op : {"adamw", "attention", "cross_entropy", "decode_fp8", "decode_nf4",
                         "dropout", "embedding", "geglu", "gemma_norm", "layer_norm", "matmul",
                         "rms_norm", "rope", "rope_of_neighbours", "square_sum", "swiglu"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), op), 1) << op;
  }
}

void finish(at::Device device) {
  if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
}

// Seconds of one call: the best of several rounds of at least 20 ms, after one to warm up. On a GPU
// many calls are enqueued before they are waited for.
double best_seconds(const std::function<void()>& run, at::Device device) {
  using Clock = std::chrono::steady_clock;
  double best = 1e30;
  const int calls_between = device.is_cuda() ? 20 : 1;
  for (int round = 0; round < 8; ++round) {
    finish(device);
    const auto start = Clock::now();
    double elapsed = 0;
    int calls = 0;
    for (; elapsed < 0.02; calls += calls_between) {
      for (int i = 0; i < calls_between; ++i) run();
      finish(device);
      elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    }
    if (round > 0) best = std::min(best, elapsed / calls);
  }
  return best;
}

// GB/s, reading and writing counted, of a copy that moves about as much as the op.
double copy_rate(double bytes, at::Device device) {
  const auto size = static_cast<int64_t>(bytes / 2);
  const at::Tensor from = at::ones({size}, at::TensorOptions().dtype(at::kByte).device(device));
  const at::Tensor to = at::empty_like(from);
  const auto on_host = [&] { std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes()); };
  const auto on_device = [&] { to.copy_(from); };
  const double seconds =
      device.is_cuda() ? best_seconds(on_device, device) : best_seconds(on_host, device);
  return bytes / seconds / 1e9;
}

void print_performance(at::Device device) {
  at::manual_seed(1);
  at::set_num_threads(1);
  fmt::print("{:<55} {:>9} {:>9} {:>9} {:>8} {:>9}\n", "device, op, type, size", "error", "us",
             "GB/s", "copy", "GFLOP/s");
  for (const OpRow& row : op_table()) {
    for (at::ScalarType type : types_on(row.types, row.narrow_on_gpu, device)) {
      OpSize size = row.timed;
      // Fills the chip; products do at their size already.
      if (device.is_cuda() && !row.name.starts_with("attention")) size.rows *= 8;
      const OpCase one = row.make(size, type, device);
      double error = 0;
      for (const Comparison& comparison : one.comparisons) {
        error = std::max(error, error_of(comparison));
      }
      const double seconds = best_seconds(one.run, device);
      const std::string flops =
          one.flops > 0 ? fmt::format("{:.0f}", one.flops / seconds / 1e9) : "";
      fmt::print("{} {:>9.1e} {:>9.1f} {:>9.2f} {:>8.2f} {:>9}\n", name_of(row, size, type, device),
                 error, seconds * 1e6, one.bytes / seconds / 1e9, copy_rate(one.bytes, device),
                 flops);
      std::fflush(stdout);  // what is known when it is stopped is worth having
    }
  }
}

}  // namespace
}  // namespace strata::ops

int main(int argc, char** argv) {
  if (argc >= 2 && std::string_view(argv[1]) == "--perf") {
    for (const at::Device device : strata::ops::devices_under_test()) {
      const std::string kind = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
      if (argc == 2 || kind == argv[2]) strata::ops::print_performance(device);
    }
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  if (argc >= 2 && std::string_view(argv[1]) == "--guard" &&
      (argc != 3 || !strata::ops::guard_memory(argv[2]))) {
    fmt::print(stderr, "test_ops --guard: expected behind or before\n");
    return 2;
  }
  return RUN_ALL_TESTS();
}
