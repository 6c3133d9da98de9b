// Oracle: English.
#include "strata/base/counted.h"

#include <gtest/gtest.h>

namespace strata {
namespace {

TEST(Counted, OneIsSingular) {
  EXPECT_EQ(counted(0, "row"), "0 rows");
  EXPECT_EQ(counted(1, "row"), "1 row");
  EXPECT_EQ(counted(size_t{2}, "row"), "2 rows");
  EXPECT_EQ(counted(1, "loss", "losses"), "1 loss");
  EXPECT_EQ(counted(3, "loss", "losses"), "3 losses");
}

}  // namespace
}  // namespace strata
