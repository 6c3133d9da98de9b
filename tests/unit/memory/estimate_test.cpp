// Oracle: figures that DeepSpeed's estimators print (two decimals of a GiB), and StarCoder's
// get_memory_footprint() in 8 bits as published: 15939.61 MB.
#include <gtest/gtest.h>

#include <cmath>

#include "strata/memory/deepspeed_estimate.h"
#include "strata/ops/quant/format.h"

namespace strata::memory {
namespace {

double gib(double bytes) { return std::round(bytes / (1 << 30) * 100) / 100; }

struct Golden {
  const char* name;
  DeepSpeedCase on;
  bool has_zero2;
  double zero2_offload[2], zero2_none[2];  // CPU, GPU
  // CPU with zero_init, GPU, CPU without.
  double both[3], optimizer[3], none[3];
};

const Golden kGolden[] = {
    {"2.9B 8x1",
     {2'851'000'000, 32'000'000, 8, 1},
     true,
     {127.45, 5.31},
     {127.45, 11.28},
     {71.69, 0.12, 127.45},
     {63.72, 0.78, 127.45},
     {1.43, 6.09, 127.45}},
    {"T5 1x1",
     {2'783'959'040, 65'798'144, 1, 1},
     false,
     {},
     {},
     {70.00, 0.25, 70.00},
     {62.23, 5.43, 62.23},
     {0.37, 46.91, 15.56}},
    {"70B 8x1",
     {70'000'000'000, 860'000'000, 8, 1},
     true,
     {3129.24, 130.39},
     {3129.24, 277.07},
     {1760.20, 3.20, 3129.24},
     {1564.62, 19.50, 3129.24},
     {38.44, 149.89, 3129.24}},
    {"70B 8x2",
     {70'000'000'000, 860'000'000, 8, 2},
     true,
     {6258.49, 130.39},
     {3129.24, 203.73},
     {880.10, 3.20, 3129.24},
     {782.31, 11.35, 3129.24},
     {38.44, 76.55, 3129.24}},
};

TEST(DeepSpeedEstimate, GoldenVectors) {
  for (const Golden& golden : kGolden) {
    SCOPED_TRACE(golden.name);
    if (golden.has_zero2) {
      for (bool offload : {true, false}) {
        const DeepSpeedNeeds needs = estimate_zero2(golden.on, offload);
        const double* expected = offload ? golden.zero2_offload : golden.zero2_none;
        EXPECT_DOUBLE_EQ(gib(needs.cpu_bytes), expected[0]);
        EXPECT_DOUBLE_EQ(gib(needs.gpu_bytes), expected[1]);
      }
    }
    const auto zero3 = [&](bool optimizer, bool parameters, const double(&expected)[3]) {
      const DeepSpeedNeeds sharded = estimate_zero3(golden.on, optimizer, parameters, true);
      const DeepSpeedNeeds whole = estimate_zero3(golden.on, optimizer, parameters, false);
      EXPECT_DOUBLE_EQ(gib(sharded.cpu_bytes), expected[0]);
      EXPECT_DOUBLE_EQ(gib(sharded.gpu_bytes), expected[1]);
      EXPECT_DOUBLE_EQ(gib(whole.cpu_bytes), expected[2]);
      EXPECT_DOUBLE_EQ(gib(whole.gpu_bytes), expected[1]);
    };
    zero3(true, true, golden.both);
    zero3(true, false, golden.optimizer);
    zero3(false, false, golden.none);
  }
}

TEST(DeepSpeedEstimate, TheTableHasEveryVariant) {
  const std::string table = deepspeed_table(kGolden[2].on);
  for (const char* part : {"1760.20", "3129.24", "149.89", "zero_init=0", "ZeRO-2"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << " in\n" << table;
  }
}

TEST(QuantizedSize, StarCoderInEightBits) {
  using ops::quant::Kind, ops::quant::stored_bytes;
  constexpr int64_t kLayers = 40, kHidden = 6144, kInner = 4 * kHidden, kVocabulary = 49152;
  constexpr int64_t kPositions = 8192, kKeys = 2 * 128;  // one head of keys and values
  int64_t codes = 0, halves = 0;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (const auto& [rows, columns] :
         {std::pair{kHidden + kKeys, kHidden}, std::pair{kHidden, kHidden},
          std::pair{kInner, kHidden}, std::pair{kHidden, kInner}}) {
      // The footprint counts no scales.
      codes += stored_bytes({.kind = Kind::kInt8}, rows, columns) - 4 * rows;
      halves += rows;  // bias
    }
    halves += 4 * kHidden;  // two norms
  }
  halves += (kVocabulary + kPositions) * kHidden + 2 * kHidden;  // the head is tied
  const int64_t mask = kPositions * kPositions;
  EXPECT_NEAR(static_cast<double>(codes) / 1e6, 15162.409, 5e-4);
  EXPECT_NEAR(static_cast<double>(codes + 2 * halves + mask) / 1e6, 15939.61, 5e-3);
}

TEST(QuantizedSize, Nf4WithDoubleQuantisationIsNear4127Bits) {
  // 4 + 8/64 + 32/(64 * 256) bits (Dettmers et al. 2023).
  const int64_t rows = 1 << 15, columns = 1 << 15;
  const double bytes =
      static_cast<double>(ops::quant::stored_bytes({.nested = true}, rows, columns));
  EXPECT_NEAR(8 * bytes / static_cast<double>(rows * columns), 4.127, 1e-3);
}

}  // namespace
}  // namespace strata::memory
