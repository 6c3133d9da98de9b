// Oracle: the invariants of the arena written in its header, and hand-placed blocks.
#include "strata/memory/arena.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "strata/base/error.h"

namespace strata::memory {
namespace {

constexpr int64_t k = Arena::kStep;

TEST(Arena, PlacesInTheSmallestFreeRangeThatFits) {
  Arena arena(100 * k);
  const int64_t a = *arena.take(10 * k), b = *arena.take(1), c = *arena.take(5 * k);
  const int64_t d = *arena.take(1);
  EXPECT_EQ(a, 0);
  EXPECT_EQ(b, 10 * k);
  EXPECT_EQ(c, 11 * k);
  EXPECT_EQ(d, 16 * k);
  arena.give_back(a);
  arena.give_back(c);
  EXPECT_EQ(arena.take(4 * k), c) << "the hole of 5, not that of 10 before it";
  EXPECT_EQ(arena.take(10 * k), a);
  EXPECT_EQ(arena.take(20 * k), 17 * k);
}

TEST(Arena, FreeNeighboursBecomeOne) {
  Arena arena(30 * k);
  const int64_t a = *arena.take(10 * k), b = *arena.take(10 * k), c = *arena.take(10 * k);
  EXPECT_FALSE(arena.take(1).has_value());
  arena.give_back(a);
  arena.give_back(c);
  EXPECT_FALSE(arena.take(20 * k).has_value());
  arena.give_back(b);
  EXPECT_EQ(arena.take(30 * k), 0);
}

TEST(Arena, PagesStayResidentUntilTrimmed) {
  Arena arena(100 * k);
  const int64_t a = *arena.take(10 * k), b = *arena.take(20 * k);
  arena.give_back(a);
  EXPECT_EQ(arena.resident_bytes(), 30 * k);
  EXPECT_EQ(arena.taken_bytes(), 20 * k);
  const std::vector<Range> freed = arena.trim();
  ASSERT_EQ(freed.size(), 1U);
  EXPECT_EQ(freed[0].begin, 0);
  EXPECT_EQ(freed[0].end, 10 * k);
  EXPECT_EQ(arena.resident_bytes(), 20 * k);
  EXPECT_TRUE(arena.trim().empty());
  arena.take(4 * k);
  EXPECT_EQ(arena.resident_bytes(), 24 * k);
  EXPECT_EQ(arena.peak_resident_bytes(), 30 * k);
  arena.give_back(b);
  EXPECT_EQ(arena.trim().size(), 1U);
  EXPECT_EQ(arena.resident_bytes(), 4 * k);
}

TEST(Arena, BlocksNeverOverlapAndNothingIsLost) {
  constexpr int64_t kCapacity = 4000;
  Arena arena(kCapacity * k);
  std::vector<int> owner(kCapacity, -1);
  struct Block {
    int64_t offset, size;
  };
  std::vector<Block> blocks;
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    if (blocks.empty() || random() % 2 == 0) {
      const int64_t size = 1 + random() % 200;
      const auto offset = arena.take(size * k);
      if (!offset) continue;
      for (int64_t at = *offset / k; at < *offset / k + size; ++at) {
        ASSERT_EQ(owner[at], -1) << "two blocks at " << at;
        owner[at] = i;
      }
      blocks.push_back({*offset, size});
    } else {
      const size_t which = random() % blocks.size();
      const Block block = blocks[which];
      EXPECT_EQ(arena.give_back(block.offset), block.size * k);
      for (int64_t at = block.offset / k; at < block.offset / k + block.size; ++at) owner[at] = -1;
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(which));
    }
    if (i % 1000 == 0) arena.trim();
  }
  for (const Block& block : blocks) arena.give_back(block.offset);
  EXPECT_EQ(arena.taken_bytes(), 0);
  EXPECT_EQ(arena.take(kCapacity * k), 0) << "all of it is one range again";
}

TEST(Arena, AForeignBlockIsABug) {
  Arena arena(10 * k);
  EXPECT_THROW(arena.give_back(k), InternalError);
}

}  // namespace
}  // namespace strata::memory
