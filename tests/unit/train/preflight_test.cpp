// Oracle: the free space that the operating system reports.
#include "strata/train/preflight.h"

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::train {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;

TEST(Preflight, ADiskWithoutRoomIsNamedBeforeTheFirstStep) {
  TemporaryFolder folder;
  const uint64_t half = available_bytes(folder.path()) / 2;
  require_disk_space(folder.path(), {.checkpoint_bytes = half / 4, .num_checkpoints = 2});
  const std::string message = message_of<IoError>([&] {
    require_disk_space(folder.path(),
                       {.checkpoint_bytes = half, .result_bytes = half / 2, .num_checkpoints = 3});
  });
  EXPECT_NE(message.find("for 3 checkpoints of "), std::string::npos) << message;
  EXPECT_NE(message.find("set save_total_limit or save less often"), std::string::npos) << message;
}

TEST(Preflight, AFolderThatIsNotSharedIsNamed) {
  TemporaryFolder folder;
  const std::string message = message_of<IoError>([&] { require_shared_folder(folder.path(), 3); });
  EXPECT_NE(message.find("rank 3 found nothing of what rank 0 wrote"), std::string::npos)
      << message;
  folder.put(".lock", "");
  require_shared_folder(folder.path(), 3);
}

TEST(Preflight, TheMachineSaysWhatMemoryItHas) { EXPECT_GT(available_memory_bytes(), 0U); }

}  // namespace
}  // namespace strata::train
