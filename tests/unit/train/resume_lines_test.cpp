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

}  // namespace
}  // namespace strata::train
