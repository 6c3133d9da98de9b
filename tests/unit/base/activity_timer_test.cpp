// Oracle: the clock around the timed scopes.
#include "strata/base/activity_timer.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

namespace strata {
namespace {

void pass(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

double of(const ActivitySeconds& seconds, Activity activity) {
  return seconds[static_cast<size_t>(activity)];
}

TEST(ActivityTimer, InnerTimersInterruptOuterOnes) {
  const ActivitySeconds before = activity_seconds();
  const auto start = std::chrono::steady_clock::now();
  {
    const ActivityTimer update(Activity::kUpdate);
    pass(5);
    {
      const ActivityTimer collectives(Activity::kCollectives);
      pass(20);
    }
    pass(5);
  }
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - start;
  ActivitySeconds spent = activity_seconds();
  for (size_t w = 0; w < spent.size(); ++w) spent[w] -= before[w];
  EXPECT_GE(of(spent, Activity::kUpdate), 0.010);
  EXPECT_GE(of(spent, Activity::kCollectives), 0.020);
  EXPECT_LE(std::accumulate(spent.begin(), spent.end(), 0.0), whole.count());
  EXPECT_EQ(of(spent, Activity::kAttention), 0);
}

TEST(ActivityTimer, ThreadsHaveSumsOfTheirOwn) {
  const double before = of(activity_seconds(), Activity::kData);
  double other = 0;
  std::thread([&] {
    {
      const ActivityTimer data(Activity::kData);
      pass(2);
    }
    other = of(activity_seconds(), Activity::kData);
  }).join();
  EXPECT_GE(other, 0.002);
  EXPECT_EQ(of(activity_seconds(), Activity::kData), before);
}

TEST(ActivityTimer, EveryWorkHasAName) {
  for (int w = 0; w < kNumActivities; ++w) EXPECT_NE(name_of(static_cast<Activity>(w)), nullptr);
}

}  // namespace
}  // namespace strata
