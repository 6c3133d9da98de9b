// Oracle: sums by hand.
#include "strata/memory/account.h"

#include <gtest/gtest.h>

namespace strata::memory {
namespace {

int64_t take(Account& account, MemoryKind kind, int64_t bytes) {
  const MemoryScope scope(kind);
  return *account.take(bytes);
}

TEST(Account, EveryPhaseHasItsOwnPeakByKind) {
  Account account(1 << 20);
  account.begin_phase("load");
  const int64_t home = take(account, MemoryKind::kParameters, 1000);
  const int64_t copy = take(account, MemoryKind::kRuntime, 500);
  account.give_back(copy);
  account.begin_phase("forward");
  const int64_t kept = take(account, MemoryKind::kActivations, 2000);
  account.begin_phase("backward");
  const int64_t more = take(account, MemoryKind::kSlots, 700);
  account.give_back(kept);
  account.begin_phase("forward");
  account.give_back(more);

  const std::vector<Phase> phases = account.phases();
  ASSERT_EQ(phases.size(), 3U);
  EXPECT_EQ(phases[0].name, "load");
  EXPECT_EQ(phases[0].peak_bytes, 1500);
  EXPECT_EQ(phases[0].at_peak[MemoryKind::kRuntime], 500);
  EXPECT_EQ(phases[1].peak_bytes, 3000);
  EXPECT_EQ(phases[1].at_peak[MemoryKind::kActivations], 2000);
  EXPECT_EQ(phases[2].peak_bytes, 3700);
  EXPECT_EQ(account.peak().name, "backward");
  EXPECT_EQ(account.peak().at_peak.total(), 3700);
  account.give_back(home);
  EXPECT_EQ(account.bytes_in_use(), 0);
  EXPECT_EQ(account.num_blocks_taken().total(), 4);
}

TEST(Account, HighWaterIsThatSinceTheLastQuestion) {
  Account account(1 << 20);
  const int64_t a = take(account, MemoryKind::kSlots, 900);
  account.give_back(a);
  EXPECT_EQ(account.take_high_water(), 900);
  take(account, MemoryKind::kSlots, 100);
  EXPECT_EQ(account.take_high_water(), 100);
}

TEST(Account, AScopeEndsWithItsBraces) {
  EXPECT_EQ(current_memory_kind, MemoryKind::kRuntime);
  {
    const MemoryScope outer(MemoryKind::kActivations);
    { const MemoryScope inner(MemoryKind::kLogits); }
    EXPECT_EQ(current_memory_kind, MemoryKind::kActivations);
  }
  EXPECT_EQ(current_memory_kind, MemoryKind::kRuntime);
}

}  // namespace
}  // namespace strata::memory
