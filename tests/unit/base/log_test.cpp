// Oracle: the lines that reach the sink.
#include "strata/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace strata {
namespace {

TEST(Logger, HandsLinesAboveTheMinimumToTheSink) {
  std::vector<std::string> lines;
  const Logger log([&](LogLevel level, const std::string& message) {
    lines.push_back(std::string(name_of(level)) + " " + message);
  });
  log.debug("hidden {}", 1);
  log.info("step {}", 2);
  log.warn("{} is slow", "x");
  log.log(LogLevel::kError, "{literal}");
  EXPECT_THAT(lines, ::testing::ElementsAre("info step 2", "warning x is slow", "error {literal}"));
  EXPECT_FALSE(log.is_enabled(LogLevel::kDebug));
}

TEST(Logger, IsSilentWithoutASink) {
  const Logger log;
  log.error("nobody hears {}", 1);
  EXPECT_FALSE(log.is_enabled(LogLevel::kError));
}

}  // namespace
}  // namespace strata
