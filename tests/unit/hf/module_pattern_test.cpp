// Oracle: the results of the same calls of Python's re.fullmatch.
#include "strata/hf/module_pattern.h"

#include <gtest/gtest.h>

#include "strata/base/error.h"

namespace strata::hf {
namespace {

TEST(ModulePattern, MatchesWholePaths) {
  EXPECT_TRUE(ModulePattern(R"(.*\.[qv]_proj)").matches("model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(ModulePattern(R"(\.[qv]_proj)").matches("model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(ModulePattern("model").matches("model.layers"));
  // The first alternative must not win just because it comes first.
  EXPECT_TRUE(ModulePattern("a|ab").matches("ab"));
  EXPECT_TRUE(ModulePattern(R"(.*layers\.(?P<n>[01])\.(?!mlp).*)").matches("model.layers.1.norm"));
  EXPECT_THROW(ModulePattern("(a"), ConfigError);
}

TEST(ModulePattern, GivesAGroupByItsName) {
  const ModulePattern pattern(R"((?:^|.*?\.)(layers|h)\.(?P<idx>\d+)\..*)");
  EXPECT_EQ(pattern.group("model.layers.12.mlp", "idx"), "12");
  EXPECT_EQ(pattern.group("h.3.mlp.experts.7.up", "idx"), "3");
  EXPECT_EQ(pattern.group("model.blocks.12.mlp", "idx"), std::nullopt);
  EXPECT_EQ(pattern.group("model.layers.12.mlp", "other"), std::nullopt);
  EXPECT_EQ(ModulePattern(R"(a|b\.(?P<idx>\d))").group("a", "idx"), std::nullopt);
}

TEST(ModulePattern, CapturesGroupsWithoutANameToo) {
  EXPECT_TRUE(ModulePattern(R"((?P<a>x)(y)\2)").matches("xyy"));
}

TEST(ModulePattern, LooksBehind) {
  EXPECT_TRUE(ModulePattern(R"(.*(?<!v)_proj)").matches("self_attn.q_proj"));
  EXPECT_FALSE(ModulePattern(R"(.*(?<!v)_proj)").matches("self_attn.v_proj"));
}

TEST(ModulePattern, NamesTheSettingInErrors) {
  try {
    ModulePattern("(a", "llm_int8_skip_modules");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("llm_int8_skip_modules: found"), std::string::npos);
  }
}

}  // namespace
}  // namespace strata::hf
