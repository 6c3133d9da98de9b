// Oracle: lines by hand, under a clock that stands until it is moved.
#include "strata/report/live_line.h"

#include <gtest/gtest.h>

#include <string>

namespace strata::report {
namespace {

using std::chrono::seconds;

struct Log {
  std::string out;
  std::chrono::steady_clock::time_point now;
  PeriodicLine line{[this](std::string_view text) { out += text; }, seconds(30),
                    [this] { return now; }};
};

TEST(PeriodicLine, TellsOnceInAPeriod) {
  Log log;
  for (int second = 0; second < 70; ++second) {
    log.line.show(std::to_string(second));
    log.now += seconds(1);
  }
  EXPECT_EQ(log.out, "30\n60\n");
}

TEST(PeriodicLine, SaysNothingOfWhatIsOverSoon) {
  Log log;
  for (int part = 0; part < 10; ++part) {
    log.now += seconds(20);
    log.line.show("downloading");
    log.line.restart();
  }
  EXPECT_EQ(log.out, "");
}

TEST(PeriodicLine, KeepsItsTurnForATextWithWords) {
  Log log;
  log.now += seconds(31);
  log.line.show("");
  log.line.show("a\rb");
  EXPECT_EQ(log.out, "a\\rb\n");
}

TEST(PreparationText, IsEmptyForFewRowsUnlessAskedFor) {
  EXPECT_EQ(preparation_text("train split of x", 12000, 0.344),
            "preparing train split of x: 12000 rows (34 %)");
  EXPECT_EQ(preparation_text("reference", 999, 0.5), "");
  EXPECT_EQ(preparation_text("reference", 16, 0.5, /*least=*/1),
            "preparing reference: 16 rows (50 %)");
}

}  // namespace
}  // namespace strata::report
