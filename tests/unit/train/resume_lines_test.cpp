// Oracle: the lines, by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/train/saving/resume.h"

namespace strata::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ResumeLines, TellOfSettingsThatShapeWhatIsLearntAlone) {
  const strata::testing::TemporaryFolder folder;
  folder.put("settings.json",
             R"({"router_aux_loss_coef": null, "learning_rate": 0.1, "save_steps": 5.0})");
  const auto lines = [&](const char* now) { return resume_lines(folder.path(), 3, 9, now); };
  EXPECT_THAT(lines(R"({"router_aux_loss_coef": null, "learning_rate": 0.1, "save_steps": 7.0})"),
              ElementsAre(StartsWith("resuming from")));
  EXPECT_THAT(
      lines(R"({"router_aux_loss_coef": 0.02, "learning_rate": 0.1, "save_steps": 5.0})"),
      ElementsAre(StartsWith("resuming from"), HasSubstr("router_aux_loss_coef 0.02 (was none)")));
}

TEST(ResumeLines, SayNothingOfWhatIsWrittenOtherwiseAlone) {
  const strata::testing::TemporaryFolder folder;
  const auto lines = [&](const char* before, const char* now) {
    folder.put("settings.json", before);
    return resume_lines(folder.path(), 3, 9, now);
  };
  EXPECT_THAT(lines(R"({"optim_args": "momentum=0.9, nesterov=True", "alpha_pattern": "",
                        "lr_scheduler_kwargs": "{\"num_cycles\": 2, \"min_lr\": 0.00001}"})",
                    R"({"optim_args": "nesterov=true,momentum=.90", "alpha_pattern": "{}",
                        "lr_scheduler_kwargs": "{\"min_lr\":1e-5,\"num_cycles\":2}"})"),
              ElementsAre(StartsWith("resuming from")));
  EXPECT_THAT(lines(R"({"optim_args": "None"})", R"({"optim_args": ""})"),
              ElementsAre(StartsWith("resuming from")));
  // The first pattern that matches counts.
  EXPECT_THAT(lines(R"({"rank_pattern": "{\"q\": 4, \"proj\": 8}"})",
                    R"({"rank_pattern": "{\"proj\": 8, \"q\": 4}"})"),
              ElementsAre(StartsWith("resuming from"), HasSubstr("rank_pattern")));
  EXPECT_THAT(lines(R"({"optim_args": "momentum=0.9"})", R"({"optim_args": "momentum=0.8"})"),
              ElementsAre(StartsWith("resuming from"),
                          HasSubstr("optim_args momentum=0.8 (was momentum=0.9)")));
}

}  // namespace
}  // namespace strata::train
