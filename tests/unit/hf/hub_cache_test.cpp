// Oracle: git's rules for names of branches and tags, and that a name is a part of paths.
#include "strata/hf/hub/cache.h"

#include <gtest/gtest.h>

namespace strata::hf {
namespace {

TEST(HubRevision, IsABranchATagOrACommit) {
  for (const char* name : {"main", "v1.0", "refs/pr/1", "0123456789abcdef0123456789abcdef01234567",
                           "feature/x_y-z", "@{u}"}) {
    EXPECT_TRUE(is_hub_revision(name)) << name;
  }
  for (const char* name : {"", "..", "../x", "a/../../b", "/etc", "a/", "a b", "a\\b", "a\nb"}) {
    EXPECT_FALSE(is_hub_revision(name)) << name;
  }
}

}  // namespace
}  // namespace strata::hf
