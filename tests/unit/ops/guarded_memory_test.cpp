// Oracle: the kernel ends a process that touches a page without rights.
#include "guarded_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace strata::ops {
namespace {

// In a process of its own, whose tensors alone are guarded.
void touch(std::string_view side, int64_t element) {
  if (!guard_memory(side)) std::exit(1);
  const at::Tensor x = at::empty({1031}, at::kBFloat16);
  const volatile auto* values = static_cast<const uint16_t*>(x.const_data_ptr());
  std::exit(values[element] == 0xffff ? 0 : 2);
}

TEST(GuardedMemoryDeathTest, EndsWhatReadsBesideATensor) {
  EXPECT_EXIT(touch("behind", 1030), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(touch("behind", 1031), testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(touch("before", 0), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(touch("before", -1), testing::KilledBySignal(SIGSEGV), "");
}

TEST(GuardedMemory, KnowsTwoSides) { EXPECT_FALSE(guard_memory("beside")); }

}  // namespace
}  // namespace strata::ops
