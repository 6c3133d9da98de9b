// Oracle: round trip, and the rows that must remain after a crash and a resume.
#include "strata/report/metrics_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::report {
namespace {

class MetricsFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / "strata_metrics_test";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    path_ = folder_ / "metrics.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

TEST_F(MetricsFileTest, KeepsDoublesExactlyAndKeyOrder) {
  {
    MetricsFile file(path_, std::nullopt);
    file.append({{"step", 1}, {"loss", 0.1 + 0.2}, {"epoch", 1.0}});
  }
  EXPECT_EQ(read_file(path_), "{\"step\": 1, \"loss\": 0.30000000000000004, \"epoch\": 1.0}\n");
}

TEST_F(MetricsFileTest, ResumeDropsLaterRowsAndTornLine) {
  {
    MetricsFile file(path_, std::nullopt);
    for (int step = 1; step <= 7; ++step) {
      file.append({{"step", step}});
    }
  }
  std::ofstream(path_, std::ios::app) << "{\"step\": 8, \"lo";
  {
    MetricsFile file(path_, 5);
    file.append({{"step", 6}, {"loss", 1.5}});
  }
  const auto rows = read_metrics(path_);
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[4]["step"], 5);
  EXPECT_EQ(rows[5]["loss"], 1.5);
}

TEST_F(MetricsFileTest, FreshRunStartsEmpty) {
  { MetricsFile(path_, std::nullopt).append({{"step", 1}}); }
  { MetricsFile file(path_, std::nullopt); }
  EXPECT_TRUE(read_metrics(path_).empty());
}

TEST_F(MetricsFileTest, NamesThePathItCannotOpen) {
  try {
    MetricsFile file(folder_ / "missing" / "metrics.jsonl", std::nullopt);
    FAIL() << "expected an IoError";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("metrics.jsonl"), std::string::npos);
  }
}

// As a loss of power leaves them: the checkpoint that the run goes on from is whole.
TEST_F(MetricsFileTest, LinesThatAreNoRowsAreDroppedAndCounted) {
  std::string text = "{\"step\": 1}\nnonsense\n[1]\n{\"loss\": 2}\n{\"step\": \"x\"}\n";
  text.append(4096, '\0').append("tail}\n{\"step\": 2}\n{\"step\": 3}\n");
  std::ofstream(path_) << text;
  size_t num_damaged = 0;
  EXPECT_EQ(read_metrics(path_, &num_damaged).size(), 3U);
  EXPECT_EQ(num_damaged, 5U);
  {
    MetricsFile file(path_, 2);
    EXPECT_EQ(file.num_damaged(), 5U);
    file.append({{"step", 3}, {"loss", 0.5}});
  }
  num_damaged = 0;
  const auto rows = read_metrics(path_, &num_damaged);
  EXPECT_EQ(num_damaged, 0U);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[2].at("loss"), 0.5);
}

}  // namespace
}  // namespace strata::report
