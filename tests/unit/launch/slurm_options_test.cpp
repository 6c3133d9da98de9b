// Oracle: the forms that sbatch's manual lists under --time and --mem, written out in seconds.
#include "strata/launch/slurm_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::launch {
namespace {

using ::testing::HasSubstr;

TEST(SlurmOptions, ReadsTimesAsSbatchDoes) {
  const std::pair<const char*, int64_t> known[] = {
      {"90", 5400},    {"1:30", 90},      {"24:00:00", 86400},   {"1-0", 86400},
      {"1-2", 93600},  {"1-2:30", 95400}, {"1-02:30:15", 95415}, {"00:02:00", 120},
      {"90:00", 5400}, {"0", 0},          {"UNLIMITED", 0},      {"infinite", 0},
  };
  for (const auto& [text, seconds] : known) {
    EXPECT_EQ(slurm_seconds(text), std::optional<int64_t>(seconds)) << text;
  }
  for (const char* text : {"", "banana", "-5", "1:", ":1", "1-", "-1:00", "1:2:3:4", "1-2-3", "1.5",
                           "24h", "1 0", "1:-5", "99999999999999999999"}) {
    EXPECT_EQ(slurm_seconds(text), std::nullopt) << text;
  }
}

TEST(SlurmOptions, ReadsSizesAsSbatchDoes) {
  for (const char* text : {"0", "4096", "200G", "200g", "1T", "512K", "30M", "200GB"}) {
    EXPECT_TRUE(is_slurm_memory(text)) << text;
  }
  for (const char* text : {"", "G", "10X", "-1", "1.5G", "10 G", "10B", "10GG", "all"}) {
    EXPECT_FALSE(is_slurm_memory(text)) << text;
  }
}

std::string error_of(const std::string& time, const config::SlurmConfig& others = {}) {
  config::SlurmConfig slurm = others;
  slurm.time = time;
  try {
    require_slurm_options(slurm);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SlurmOptions, TheLimitLeavesTimeToTrain) {
  EXPECT_THAT(error_of("00:05:00"), HasSubstr("--time: found 00:05:00 (300 seconds)"));
  EXPECT_EQ(error_of("00:05:01"), "no error");
  config::SlurmConfig stops_late;
  stops_late.stop_seconds = 60;
  EXPECT_EQ(error_of("00:05:00", stops_late), "no error");
  EXPECT_EQ(error_of("0"), "no error");
}

}  // namespace
}  // namespace strata::launch
