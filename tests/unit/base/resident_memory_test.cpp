// Oracle: memory that the test itself takes and gives back.
#include "strata/base/resident_memory.h"

#include <sys/mman.h>

#include <cstring>

#include <gtest/gtest.h>

namespace strata {
namespace {

constexpr int64_t kBlock = int64_t{96} << 20;
constexpr int64_t kSlack = int64_t{16} << 20;

TEST(PeakWatch, SeesMemoryThatIsGoneAgain) {
  // The second round stays below the process's high water mark: the looks alone must find it.
  for (int round = 0; round < 2; ++round) {
    PeakWatch watch;
    void* memory =
        ::mmap(nullptr, kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    // Long enough to be looked at in every round.
    for (int i = 0; i < 4; ++i) std::memset(memory, i + 1, kBlock);
    const int64_t during = resident_bytes();
    ::munmap(memory, kBlock);
    const int64_t peak = watch.stop();
    EXPECT_GE(during - watch.start_bytes(), kBlock - kSlack);
    EXPECT_GE(peak - watch.start_bytes(), kBlock - kSlack);
    EXPECT_LE(peak - watch.start_bytes(), kBlock + kSlack);
    EXPECT_LE(resident_bytes() - watch.start_bytes(), kSlack);
  }
}

}  // namespace
}  // namespace strata
