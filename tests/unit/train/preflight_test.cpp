// Oracle: the free space that the operating system reports; sums over ranks that share memory.
#include "strata/train/saving/preflight.h"

#include <sys/resource.h>

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/comm/single_group.h"

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
  EXPECT_NE(message.find("set save_total_limit, save less often"), std::string::npos) << message;
}

TEST(Preflight, AResultThatDoesNotFitIsNamedWithoutCheckpointsToo) {
  TemporaryFolder folder;
  const uint64_t all = available_bytes(folder.path());
  require_disk_space(folder.path(), {.result_bytes = all / 2});
  const std::string message =
      message_of<IoError>([&] { require_disk_space(folder.path(), {.result_bytes = 2 * all}); });
  EXPECT_NE(message.find(" for the result of "), std::string::npos) << message;
  EXPECT_EQ(message.find("checkpoint"), std::string::npos) << message;
}

TEST(Preflight, WhatAStopWouldLackIsAWarning) {
  TemporaryFolder folder;
  const uint64_t all = available_bytes(folder.path());
  // In the place of the last checkpoint, and of the result.
  EXPECT_FALSE(shortage_for_stop(folder.path(), {.checkpoint_bytes = all / 4,
                                                 .result_bytes = all,
                                                 .num_checkpoints = 3,
                                                 .stop_bytes = all / 4}));
  const auto found = shortage_for_stop(
      folder.path(), {.checkpoint_bytes = all / 4, .num_checkpoints = 3, .stop_bytes = all});
  ASSERT_TRUE(found);
  EXPECT_NE(found->find("for the checkpoint of a request to stop"), std::string::npos) << *found;
  EXPECT_TRUE(shortage_for_stop(folder.path(), {.stop_bytes = 2 * all}));
}

// Oracle: the limit that the operating system was told.
TEST(Preflight, AFileThatThisProcessMayNotWriteIsAWarning) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 1'000'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const auto at_limit = file_size_warning(1'000'000), beyond = file_size_warning(1'000'001);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(at_limit);
  ASSERT_TRUE(beyond);
  EXPECT_NE(beyond->find("found a limit of 1.00 MB a file (ulimit -f)"), std::string::npos)
      << *beyond;
}

TEST(Preflight, AFolderThatIsNotSharedIsNamed) {
  TemporaryFolder folder;
  const auto message = [&] {
    return message_of<IoError>([&] { require_shared_folder(folder.path(), 3, "process 1"); });
  };
  EXPECT_NE(message().find("rank 3 found nothing of what rank 0 wrote"), std::string::npos);
  folder.put(".lock", "process 2");  // of a run that was killed, on a disk of this machine alone
  EXPECT_NE(message().find("rank 3 found nothing of what rank 0 wrote"), std::string::npos);
  folder.put(".lock", "process 1");
  EXPECT_EQ(message(), "");
}

TEST(Preflight, TheMachineSaysWhatMemoryItHas) {
  const CopyMemory found = copy_memory(7);
  EXPECT_EQ(found.copy_bytes, 7U);
  EXPECT_GT(found.machine_bytes, 0U);
  const auto group = comm::make_single_group();
  const std::vector<CopyMemory> ranks = gather_copy_memory(found, *group);
  ASSERT_EQ(ranks.size(), 1U);
  EXPECT_EQ(ranks[0].machine_id, found.machine_id);
  EXPECT_EQ(ranks[0].container_bytes, found.container_bytes);
  EXPECT_FALSE(find_shortage(ranks));
}

TEST(Preflight, CopiesOfAllRanksOfAMachineCountTogether) {
  constexpr uint64_t kMega = 1'000'000;
  struct Row {
    std::vector<CopyMemory> ranks;
    std::string shortage;  // empty: none
  };
  for (const Row& row : {
           Row{{{4 * kMega, 1, 8 * kMega, 0, 0}, {4 * kMega, 1, 8 * kMega, 0, 0}}, ""},
           Row{{{4 * kMega, 1, 7 * kMega, 0, 0}, {4 * kMega, 1, 8 * kMega, 0, 0}},
               "7.00 MB free in the machine of rank 0, expected 8.00 MB for the copies of its 2 "
               "ranks"},
           // Two machines.
           Row{{{4 * kMega, 1, 7 * kMega, 0, 0}, {4 * kMega, 2, 7 * kMega, 0, 0}}, ""},
           // A container with less than its machine; two that share one machine.
           Row{{{4 * kMega, 1, 90 * kMega, 5, 3 * kMega}},
               "3.00 MB free in the container of rank 0, expected 4.00 MB for the copy of its 1 "
               "rank"},
           Row{{{4 * kMega, 1, 90 * kMega, 5, 6 * kMega}, {4 * kMega, 1, 90 * kMega, 6, 6 * kMega}},
               ""},
           Row{{{4 * kMega, 1, 90 * kMega, 5, 6 * kMega}, {4 * kMega, 1, 90 * kMega, 5, 6 * kMega}},
               "6.00 MB free in the container of rank 0, expected 8.00 MB for the copies of its 2 "
               "ranks"},
           // A replica writes nothing and copies nothing; a machine may not say what it has.
           Row{{{4 * kMega, 1, 7 * kMega, 0, 0}, {0, 1, 7 * kMega, 0, 0}}, ""},
           Row{{{4 * kMega, 1, 0, 0, 0}}, ""},
       }) {
    EXPECT_EQ(find_shortage(row.ranks).value_or(""), row.shortage);
  }
}

}  // namespace
}  // namespace strata::train
