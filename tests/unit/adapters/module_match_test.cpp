// Oracle: the results of the same calls in PEFT's tuners_utils.
#include "strata/adapters/module_match.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace strata::adapters {
namespace {

using ::testing::ElementsAre;

TEST(MatchesList, WholePathOrEndBehindADot) {
  EXPECT_TRUE(matches_list("a.q_proj", {"q_proj"}));
  EXPECT_TRUE(matches_list("lm_head", {"lm_head"}));
  EXPECT_FALSE(matches_list("a.xq_proj", {"q_proj"}));
  EXPECT_TRUE(matches_list("a.b.c", {"b.c"}));
  EXPECT_FALSE(matches_list("a.b", {"a"}));
  EXPECT_FALSE(matches_list("a.b", {}));
}

TEST(NameList, SaysTheSameOfManyNames) {
  const std::vector<std::string> entries = {"q_proj", "b.c", "a.b.d", "", "x."};
  const NameList names(entries);
  for (const char* path : {"q_proj", "a.q_proj", "xq_proj", "a.b.c", "b.c", "c", "a.xb.c", "a.b.d",
                           "b.d", "z.a.b.d", "a", "lm_head"}) {
    EXPECT_EQ(names.matches(path), matches_list(path, entries)) << path;
  }
}

TEST(IsInside, WholeSegments) {
  EXPECT_TRUE(is_inside("model.layers.0.mlp.up_proj", {"mlp"}));
  EXPECT_TRUE(is_inside("lm_head", {"lm_head"}));
  EXPECT_FALSE(is_inside("model.xmlp.up_proj", {"mlp"}));
}

TEST(ModulePaths, AncestorsInOrder) {
  EXPECT_THAT(module_paths({"a.b.weight", "a.c.d.weight"}),
              ElementsAre("a", "a.b", "a.c", "a.c.d"));
}

TEST(MinimalSuffixes, OneEndServesSeveralTargets) {
  EXPECT_THAT(minimal_suffixes({"a.b.q", "a.c.q", "a.b.k"}, {"a.d.k", "x.q.y"}),
              ElementsAre("b.k", "q"));
}

TEST(MinimalSuffixes, ShortestThatNameNothingElse) {
  std::vector<std::string> targets, others;
  for (int i = 0; i < 12; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    targets.push_back(layer + ".attn.q_proj");
    targets.push_back(layer + ".attn.out");
    others.push_back(layer + ".mlp.out");
  }
  EXPECT_THAT(minimal_suffixes(targets, others), ElementsAre("attn.out", "q_proj"));
}

}  // namespace
}  // namespace strata::adapters
