// Oracle: the rules that docs/guide/checkpoints.md states for a result that cannot be written.
#include "strata/train/saving/result_retry.h"

#include <fstream>
#include <limits>
#include <mutex>

#include <gmock/gmock.h>

#include "../comm/on_ranks.h"
#include "../temporary_folder.h"
#include "strata/base/file.h"
#include "strata/comm/mesh.h"
#include "strata/comm/single_group.h"

namespace strata::train {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A folder that takes nothing for some looks, and what is said meanwhile.
struct Scene {
  int looks_until_room = 0;  // beyond the first, which is for the message
  int looks_until_stop = std::numeric_limits<int>::max();
  int looks = 0;
  std::vector<std::string> said = {};

  ResultRetry::Options options() {
    return {.obstacle = [this]() -> std::optional<std::string> {
              if (looks++ > looks_until_room) return std::nullopt;
              return "found no room";
            },
            .is_told_to_end = [this] { return looks >= looks_until_stop; },
            .say = [this](const std::string& line) { said.push_back(line); },
            .pause = milliseconds(1),
            .longest_pause = milliseconds(4)};
  }
};

TEST(ResultRetry, WaitsUntilTheFolderTakesFiles) {
  Scene scene{.looks_until_room = 3};
  const auto alone = comm::make_single_group();
  ResultRetry retry(*alone, scene.options());
  EXPECT_TRUE(retry.waits("a.safetensors: found no space left", true));
  EXPECT_EQ(scene.looks, 5);
  EXPECT_THAT(scene.said,
              ElementsAre(HasSubstr("a.safetensors: found no space left (found no room); what was "
                                    "trained is only in memory"),
                          HasSubstr("trying once more")));
}

TEST(ResultRetry, AWarningComesOnce) {
  Scene scene{.looks_until_room = -1};
  const auto alone = comm::make_single_group();
  ResultRetry retry(*alone, scene.options());
  EXPECT_TRUE(retry.waits("refused", true));
  EXPECT_TRUE(retry.waits("refused", true));
  EXPECT_THAT(scene.said, ElementsAre(HasSubstr("refused; what was trained"), HasSubstr("trying"),
                                      HasSubstr("trying")));
}

TEST(ResultRetry, WhereTheDiskHoldsWhatWasTrainedNothingIsWaitedFor) {
  Scene scene;
  const auto alone = comm::make_single_group();
  ResultRetry retry(*alone, scene.options());
  EXPECT_FALSE(retry.waits("refused", false));
  EXPECT_EQ(scene.looks, 0);
  EXPECT_THAT(scene.said, IsEmpty());
}

TEST(ResultRetry, BeingToldToEndGivesUp) {
  Scene scene{.looks_until_room = 1000, .looks_until_stop = 3};
  const auto alone = comm::make_single_group();
  ResultRetry retry(*alone, scene.options());
  EXPECT_FALSE(retry.waits("refused", true));
  EXPECT_EQ(scene.looks, 3);
}

TEST(ResultRetry, GivesUpAfterItsTime) {
  Scene scene{.looks_until_room = std::numeric_limits<int>::max()};
  const auto alone = comm::make_single_group();
  ResultRetry::Options options = scene.options();
  options.longest = milliseconds(5);
  ResultRetry retry(*alone, options);
  EXPECT_FALSE(retry.waits("refused", true));
  EXPECT_THAT(scene.said, ElementsAre(HasSubstr("for 0.005 s")));
}

TEST(ResultRetry, AllRanksDoWhatRank0Says) {
  for (const bool has_room : {true, false}) {
    std::mutex mutex;
    std::vector<bool> answers;
    comm::on_ranks(3, [&](comm::Rendezvous& rendezvous) {
      const auto world = rendezvous.make_group("world", {});
      const bool is_main = world->rank() == 0;
      Scene scene{.looks_until_room = is_main ? 2 : std::numeric_limits<int>::max(),
                  .looks_until_stop = is_main && !has_room ? 2 : std::numeric_limits<int>::max()};
      ResultRetry retry(*world, scene.options());
      const bool tries = retry.waits(is_main ? "refused" : "", is_main);
      EXPECT_EQ(scene.looks > 0, is_main) << "others ask nobody";
      const std::lock_guard lock(mutex);
      answers.push_back(tries);
    });
    EXPECT_THAT(answers, ElementsAre(has_room, has_room, has_room));
  }
}

TEST(ResultRetry, AFileThatIsTooLargeStaysSo) {
  EXPECT_FALSE(may_be_mended("a.safetensors: found file too large after 16384 bytes written"));
  EXPECT_TRUE(may_be_mended("a.safetensors: found no space left on device"));
}

TEST(ObstacleToResult, IsWantOfRoomOrOfPermission) {
  const strata::testing::TemporaryFolder folder;
  EXPECT_EQ(obstacle_to_result(folder.path(), 1), std::nullopt);
  const uint64_t too_much = uint64_t{1} << 60;
  EXPECT_THAT(obstacle_to_result(folder.path(), too_much).value(),
              HasSubstr("expected 1152921504.61 GB"));
  std::ofstream(folder / "file") << "x";
  EXPECT_THAT(obstacle_to_result(folder / "file", 1).value(), HasSubstr("found no folder"));
  EXPECT_THAT(obstacle_to_result(folder / "gone", 1).value(), HasSubstr("found no folder"));
  EXPECT_FALSE(std::filesystem::exists(folder / "gone"));
}

}  // namespace
}  // namespace strata::train
