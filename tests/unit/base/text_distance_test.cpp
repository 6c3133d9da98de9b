// Oracle: hand-counted edits.
#include "strata/base/text_distance.h"

#include <gtest/gtest.h>

#include <vector>

namespace strata {
namespace {

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("abc", "abc"), 0u);
  EXPECT_EQ(edit_distance("abc", "acb"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("ca", "abc"), 3u);
}

TEST(Closest, FindsMisspeltNames) {
  const std::vector<std::string> names = {"learning_rate", "lr_scheduler_type",
                                          "lora_r",        "lora_alpha",
                                          "max_steps",     "max_length",
                                          "bf16",          "fp16",
                                          "q_proj",        "v_proj"};
  EXPECT_EQ(closest("learning_rat", names), "learning_rate");
  EXPECT_EQ(closest("Learning-Rate", names), "learning_rate");
  EXPECT_EQ(closest("lora_aplha", names), "lora_alpha");
  EXPECT_EQ(closest("max_step", names), "max_steps");
  EXPECT_EQ(closest("lr_scheduler", names), "lr_scheduler_type");
  EXPECT_EQ(closest("bf61", names), "bf16");
}

TEST(Closest, NamesSeveralNearestFirst) {
  const std::vector<std::string> names = {"q_proj", "k_proj", "up_proj", "lm_head"};
  EXPECT_EQ(closest_names("u_proj", names, 2), (std::vector<std::string>{"q_proj", "k_proj"}));
  EXPECT_EQ(closest_names("up_prj", names, 9), (std::vector<std::string>{"up_proj"}));
  EXPECT_EQ(closest_names("u_proj", names, 9),
            (std::vector<std::string>{"q_proj", "k_proj", "up_proj"}));
}

TEST(Closest, StaysSilentWhenNothingIsNear) {
  const std::vector<std::string> names = {"learning_rate", "lora_r", "seed", "lr"};
  EXPECT_EQ(closest("gradient_checkpointing", names), std::nullopt);
  EXPECT_EQ(closest("x", names), std::nullopt);
  EXPECT_EQ(closest("", names), std::nullopt);
  EXPECT_EQ(closest("seed", {}), std::nullopt);
}

}  // namespace
}  // namespace strata
