// Oracle: sentences by hand for every shape of a hang; the kernel for real threads' stacks.
#include "strata/launch/watchdog.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/launch/stack_trace.h"

namespace strata::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

Observation waits(int rank, int64_t ms, uint64_t number = 7, const char* group = "world") {
  return {.rank = rank,
          .reading = {.process = 1,
                      .step = 3,
                      .waiting_ms = ms,
                      .number = number,
                      .phase = "training",
                      .collective = "all-reduce",
                      .group = group},
          .state = 'S'};
}

Observation computes(int rank, char state = 'R') {
  return {
      .rank = rank, .reading = {.process = 1, .step = 2, .phase = "evaluating"}, .state = state};
}

TEST(Hang, NobodyWaitsTooLong) {
  EXPECT_FALSE(describe_hang({}, milliseconds(1000)));
  EXPECT_FALSE(describe_hang({computes(0), waits(1, 999)}, milliseconds(1000)));
}

TEST(Hang, TheRankThatIsElsewhereIsNamed) {
  EXPECT_EQ(
      describe_hang({waits(0, 12040), computes(1), waits(2, 11000)}, milliseconds(12000)),
      "hang: found rank 1 in step 2 (evaluating), not in all-reduce 7 of group world (step 3) "
      "where ranks 0, 2 wait for 12.0 s, expected rank 1 there within 12 s (hang_timeout)");
  EXPECT_THAT(*describe_hang({waits(0, 2000), computes(1, 'T')}, milliseconds(1000)),
              HasSubstr("rank 1 in step 2 (evaluating), stopped by a signal, not in"));
}

TEST(Hang, RanksInDifferentCollectivesAreTold) {
  EXPECT_THAT(
      *describe_hang({waits(0, 2000), waits(1, 1500, 9, "shard0")}, milliseconds(1000)),
      HasSubstr("found rank 1 in step 3 (training), waiting in all-reduce 9 of group shard0, "
                "not in all-reduce 7 of group world (step 3) where rank 0 waits"));
}

TEST(Hang, TheRankBehindIsNamedNotTheOnesAhead) {
  Observation stopped = waits(1, 5000, 6);
  stopped.state = 'T';
  EXPECT_EQ(
      *describe_hang({waits(0, 2000), stopped, waits(2, 2000)}, milliseconds(1000)),
      "hang: found rank 1 in step 3 (training), waiting in all-reduce 6 of group world, stopped "
      "by a signal, not in all-reduce 7 of group world (step 3) where ranks 0, 2 wait for 2.0 s, "
      "expected rank 1 there within 1 s (hang_timeout)");
  EXPECT_THAT(*describe_hang({waits(0, 2000), waits(1, 2500, 6)}, milliseconds(1000)),
              HasSubstr("found rank 1 in step 3 (training), waiting in all-reduce 6"));
  EXPECT_FALSE(describe_hang({stopped, waits(0, 500)}, milliseconds(1000)));
}

TEST(Hang, WhereAllWaitAnotherMachineLags) {
  EXPECT_EQ(
      describe_hang({waits(0, 2000), waits(1, 1900)}, milliseconds(1000)),
      "hang: found ranks 0, 1 of this machine waiting in all-reduce 7 of group world (step 3) "
      "for 2.0 s, expected the ranks of the other machines there too; see what those report");
}

TEST(Wait, IsToldBeforeItIsAHang) {
  const std::vector<Observation> ranks{waits(0, 61040), computes(1, 'T'), waits(2, 61000)};
  EXPECT_EQ(describe_wait(ranks, milliseconds(60000), milliseconds(1620000)),
            "ranks 0, 2 wait for 61 s in all-reduce 7 of group world (step 3): rank 1 in step 2 "
            "(evaluating), stopped by a signal; at 1620 s all ranks are stopped (hang_timeout)");
  EXPECT_FALSE(describe_wait(ranks, milliseconds(62000), milliseconds(1620000)));
  EXPECT_THAT(
      *describe_wait({waits(0, 2000), waits(1, 1900)}, milliseconds(1000), milliseconds(4000)),
      HasSubstr("ranks 0, 1 wait for 2 s in all-reduce 7 of group world (step 3): ranks of "
                "other machines are not there; at 4 s"));
}

TEST(Wait, ALongerOneIsToldAgainAndShortOnesSeldom) {
  WaitWords words;
  auto now = std::chrono::steady_clock::now();
  const auto is_told = [&](int64_t waited_seconds, int later_seconds) {
    now += std::chrono::seconds(later_seconds);
    return words.next({waits(0, 1000 * waited_seconds), computes(1)}, milliseconds(1'800'000), now)
        .has_value();
  };
  EXPECT_FALSE(is_told(59, 0));
  EXPECT_TRUE(is_told(61, 2));
  EXPECT_FALSE(is_told(119, 58));
  EXPECT_TRUE(is_told(121, 2));
  EXPECT_FALSE(is_told(200, 79));
  EXPECT_FALSE(is_told(100, 200));  // another wait, which is no news
  EXPECT_TRUE(is_told(241, 141));   // until it lasts
  EXPECT_FALSE(is_told(70, 300));
  EXPECT_FALSE(is_told(70, 299));
  EXPECT_TRUE(is_told(70, 1));  // ten minutes later
  EXPECT_TRUE(is_told(121, 50));
}

// The default hang_timeout: one wait until the end of the run.
TEST(WaitWords, OneLongWaitIsToldWheneverItHasDoubled) {
  WaitWords words;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<int> told;
  for (int seconds = 1; seconds <= 1620; seconds += 5) {
    const auto word = words.next({waits(0, 1000 * seconds), computes(1)}, milliseconds(1'620'000),
                                 begin + std::chrono::seconds(seconds));
    if (word) told.push_back(seconds);
  }
  EXPECT_THAT(told, testing::ElementsAre(61, 121, 241, 481, 961));
  // Another one, long already when it is first seen, is one word.
  const auto later = begin + std::chrono::hours(2);
  const auto is_told = [&](int waited, int after) {
    return words
        .next({waits(0, 1000 * waited), computes(1)}, milliseconds(1'620'000),
              later + std::chrono::seconds(after))
        .has_value();
  };
  EXPECT_TRUE(is_told(500, 0));
  EXPECT_FALSE(is_told(505, 5));
  EXPECT_TRUE(is_told(961, 461));
}

TEST(WatchedRanks, APageTellsWhatItsRankDoes) {
  const WatchedRank watched(4);
  EXPECT_EQ(watched.read().process, 0);
  {
    Status status(watched.status_descriptor());
    status.set_phase("a phase whose name is much longer than the page has place for, so it is cut");
    status.set_step(5);
    EXPECT_EQ(watched.read().process, ::getpid());
    EXPECT_EQ(watched.read().step, 5);
    EXPECT_EQ(watched.read().phase.size(), 47u);
    EXPECT_EQ(watched.read().waiting_ms, 0);
    {
      const Status::Waiting waiting(status, "broadcast", "shard1", 8);
      const StatusReading reading = watched.read();
      EXPECT_GE(reading.waiting_ms, 1);
      EXPECT_EQ(reading.collective + reading.group + std::to_string(reading.number),
                "broadcastshard18");
    }
    EXPECT_EQ(watched.read().waiting_ms, 0);
  }
  EXPECT_EQ(watched.read().process, 0);
  Status unwatched(-1), wrong(watched.stack_descriptor());
  unwatched.set_phase("x");
  wrong.set_phase("x");
}

// A host that stands behind its GPU waits in no collective of its own.
TEST(WatchedRanks, APageTellsWhatItsGpuWaitsFor) {
  const WatchedRank watched(0);
  Status status(watched.status_descriptor());
  const auto place = [&] {
    const StatusReading reading = watched.read();
    return reading.waiting_ms == 0
               ? std::string()
               : fmt::format("{} {} {}", reading.collective, reading.number, reading.group);
  };
  const int64_t now = monotonic_ms();
  const int shard = 0, world = 0;
  status.tell_device_wait(&shard, {"reduce-scatter", "shard0 (nccl)", 7, now - 2000});
  EXPECT_EQ(place(), "reduce-scatter 7 shard0 (nccl)");
  EXPECT_GE(watched.read().waiting_ms, 2000);
  // Of several groups the one that waits for longest.
  status.tell_device_wait(&world, {"all-reduce", "world (nccl)", 3, now - 5000});
  EXPECT_EQ(place(), "all-reduce 3 world (nccl)");
  {
    const Status::Waiting waiting(status, "broadcast", "shard1", 8);
    EXPECT_EQ(place(), "broadcast 8 shard1");
  }
  status.tell_device_wait(&world, {"", "", 0, 0});
  EXPECT_EQ(place(), "reduce-scatter 7 shard0 (nccl)");
  status.tell_device_wait(&shard, {"", "", 0, 0});
  EXPECT_EQ(place(), "");
}

// A process with two threads, of which one blocks all signals.
class StacksOfAProcess : public ::testing::Test {
 protected:
  StacksOfAProcess() : watched_(0) {
    process_ = ::fork();
    if (process_ == 0) live();
    ::setpgid(process_, process_);
    // Its first thread may be on its way to its sleep when the other says so.
    while (watched_.read().phase != "ready" || state_of_process(process_) != 'S') {
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  ~StacksOfAProcess() override {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }

  [[noreturn]] void live() {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setpgid(0, 0);
    static Status status(watched_.status_descriptor());
    static const StacksOnRequest stacks(status.page(), watched_.stack_descriptor());
    std::thread([] {
      sigset_t all;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
      ::prctl(PR_SET_NAME, "deaf");
      status.set_phase("ready");
      while (true) ::pause();
    }).detach();
    while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
  }

  WatchedRank watched_;
  pid_t process_ = -1;
};

TEST_F(StacksOfAProcess, EveryThreadAnswersOrIsExplained) {
  for (int time = 0; time < 2; ++time) {
    const std::string text = watched_.stacks(process_);
    EXPECT_THAT(text, HasSubstr("thread " + std::to_string(process_) + " (test_launch)\n  "));
    EXPECT_THAT(text, HasSubstr("nanosleep"));
    EXPECT_THAT(text, HasSubstr("(deaf): no stack, blocks signals"));
  }
  EXPECT_EQ(::kill(process_, 0), 0) << "it goes on";
}

TEST_F(StacksOfAProcess, AStoppedOneIsExplained) {
  ::kill(process_, SIGSTOP);
  while (state_of_process(process_) != 'T') std::this_thread::sleep_for(milliseconds(5));
  EXPECT_THAT(watched_.stacks(process_), HasSubstr("state T\nthread "));
  EXPECT_THAT(watched_.stacks(process_), HasSubstr("no stack, stopped"));
}

TEST_F(StacksOfAProcess, AStrangerIsLeftAlone) {
  EXPECT_EQ(watched_.stacks(::getpgrp()), "no process that shares its status\n");
}

// Regression: the handler stayed and wrote to the page, which was no longer mapped.
TEST(StacksOnRequest, ALateRequestFindsNobody) {
  const WatchedRank watched(0);
  const pid_t child = ::fork();
  if (child == 0) {
    {
      Status status(watched.status_descriptor());
      const StacksOnRequest stacks(status.page(), watched.stack_descriptor());
      ::raise(stack_trace_signal());
      if (status.page().traces.load() != 1) ::_exit(1);
    }
    ::raise(stack_trace_signal());
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace strata::launch
