// Oracle: the shell's own view of ranks, exit codes and processes that are left.
#include "strata/launch/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/status_page.h"
#include "strata/launch/environment.h"

namespace strata::launch {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class Supervision : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("strata_launch_test_{}", ::getpid());
    fs::create_directories(folder_);
    out_ =
        ::open((folder_ / "out").c_str(), O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    err_ =
        ::open((folder_ / "err").c_str(), O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  }
  void TearDown() override {
    ::close(out_);
    ::close(err_);
    fs::remove_all(folder_);
  }

  LaunchPlan shell(const std::string& script, int ranks) const {
    LaunchPlan plan;
    plan.command = {"/bin/sh", "-c", script};
    plan.world_size = plan.local_world_size = ranks;
    plan.environment = {{"WORLD_SIZE", std::to_string(ranks)}, {"FOLDER", folder_.string()}};
    return plan;
  }
  int run(const LaunchPlan& plan, std::chrono::milliseconds patience = {}) const {
    return run_workers(plan, {.streams = {out_, err_},
                              .patience = patience,
                              .grace = patience + std::chrono::milliseconds(300),
                              .grace_after_term = grace_after_term_})
        .exit_code;
  }
  std::string text(const char* file) const { return read_file(folder_ / file); }
  // The process has ended, at most waiting for the system's first process to collect it.
  bool is_gone(const std::string& pid) const {
    std::ifstream file("/proc/" + pid + "/stat");
    std::string number, name, state, parent;
    if (!(file >> number >> name >> state >> parent)) return true;
    return state == "Z" && parent != std::to_string(::getpid());
  }

  fs::path folder_;
  int out_ = -1, err_ = -1;
  std::chrono::milliseconds grace_after_term_{120000};
};

TEST_F(Supervision, EveryRankHasItsNumberAndOthersAreLabelled) {
  EXPECT_EQ(run(shell("echo I am $RANK of $WORLD_SIZE local $LOCAL_RANK; echo oops >&2", 3)), 0);
  const std::string out = text("out");
  EXPECT_THAT(out, HasSubstr("I am 0 of 3 local 0\n"));
  EXPECT_THAT(out, HasSubstr("[rank 1] I am 1 of 3 local 1\n"));
  EXPECT_THAT(out, HasSubstr("[rank 2] I am 2 of 3 local 2\n"));
  EXPECT_EQ(out.find("[rank 0]"), std::string::npos);
  EXPECT_THAT(text("err"), HasSubstr("[rank 2] oops\n"));
}

TEST_F(Supervision, LongAndUnfinishedLinesArrive) {
  EXPECT_EQ(
      run(shell("[ $RANK = 0 ] || { head -c 100000 /dev/zero | tr '\\0' x; printf end; }", 2)), 0);
  const std::string out = text("out");
  EXPECT_EQ(std::count(out.begin(), out.end(), 'x'), 100000);
  EXPECT_THAT(out, HasSubstr("end\n"));
}

TEST_F(Supervision, LogFolderTakesTheOthersOutput) {
  LaunchPlan plan =
      shell("echo here $RANK; [ $RANK != 1 ] || { sleep 0.3; echo why >&2; exit 4; }", 2);
  plan.log_dir = folder_ / "logs";
  EXPECT_EQ(run(plan), 4);
  EXPECT_EQ(text("logs/rank_1.log"), "here 1\nwhy\n");
  EXPECT_THAT(text("out"), HasSubstr("here 0"));
  EXPECT_THAT(text("err"), HasSubstr("[rank 1] why\n"));
}

TEST_F(Supervision, EveryRankHasALogFileAndRankZeroIsShownToo) {
  LaunchPlan plan = shell("echo out $RANK; echo err $RANK >&2", 3);
  plan.log_dir = folder_ / "logs";
  plan.tee = {0, kTeeErrors, 0};
  EXPECT_EQ(run(plan), 0);
  EXPECT_EQ(text("out"), "out 0\n");
  EXPECT_THAT(text("err"), ::testing::AnyOf("err 0\n[rank 1] err 1\n", "[rank 1] err 1\nerr 0\n"));
  for (const char* rank : {"0", "1", "2"}) {
    const std::string log = text(fmt::format("logs/rank_{}.log", rank).c_str());
    EXPECT_THAT(log, HasSubstr(fmt::format("out {}\n", rank)));
    EXPECT_THAT(log, HasSubstr(fmt::format("err {}\n", rank)));
  }
}

TEST_F(Supervision, WhatIsShownIsNotRepeatedFromTheLog) {
  LaunchPlan plan = shell("[ $RANK != 0 ] || { echo why >&2; exit 4; }; sleep 60", 2);
  plan.log_dir = folder_ / "logs";
  EXPECT_EQ(run(plan), 4);
  EXPECT_EQ(text("err"), "why\nerror: rank 0: ended with exit code 4; stopping the other ranks\n");
}

TEST_F(Supervision, AReaderWhoSleepsHoldsUpNoFailure) {
  // Nobody reads the launcher's output: rank 1 fills it and more, then fails.
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  LaunchPlan plan = shell(
      "[ $RANK = 1 ] || { head -c 1000000 /dev/zero; sleep 60; }; sleep 0.3; echo why >&2; exit 6",
      3);
  plan.log_dir = folder_ / "logs";
  plan.tee = {0, 0, kTeeOutput};
  const auto start = Clock::now();
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    char buffer[65536];
    while (::read(ends[0], buffer, sizeof(buffer)) > 0) {
    }
  });
  EXPECT_EQ(run_workers(plan, {.streams = {ends[1], err_},
                               .patience = std::chrono::milliseconds(100),
                               .grace = std::chrono::milliseconds(300)})
                .exit_code,
            6);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  EXPECT_THAT(text("err"), HasSubstr("error: rank 1: ended with exit code 6"));
}

TEST(ShownText, IsWhatALineSaysInTheEnd) {
  EXPECT_EQ(shown_text("plain"), "plain");
  EXPECT_EQ(shown_text("windows\r"), "windows");
  EXPECT_EQ(shown_text("bar 1/2\r\x1b[Kbar 2/2"), "bar 2/2");
  EXPECT_EQ(shown_text("\x1b[1;32mgreen\x1b[0m text"), "green text");
  EXPECT_EQ(shown_text("\x1b["), "");
  EXPECT_EQ(shown_text(""), "");
}

TEST_F(Supervision, AFailingRankEndsAllAndSpeaksFirst) {
  const auto start = Clock::now();
  EXPECT_EQ(
      run(shell(
          "echo $$ > $FOLDER/pid$RANK; [ $RANK != 1 ] || { sleep 0.3; echo broken >&2; exit 7; };"
          "sleep 60",
          3)),
      7);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  const std::string err = text("err");
  EXPECT_THAT(err, HasSubstr("[rank 1] broken\nerror: rank 1: ended with exit code 7; stopping the "
                             "other ranks\n"));
  for (const char* rank : {"pid0", "pid2"}) {
    std::string pid = text(rank);
    pid.pop_back();
    EXPECT_TRUE(is_gone(pid)) << pid;
  }
}

TEST_F(Supervision, AKilledRankIsNamed) {
  EXPECT_EQ(run(shell("[ $RANK != 1 ] || kill -9 $$; sleep 60", 2)), 137);
  EXPECT_THAT(text("err"), HasSubstr("error: rank 1: killed by signal 9 (Killed); the system does "
                                     "this when memory runs out; stopping the other ranks\n"));
}

TEST_F(Supervision, AfterAFailureTheOthersMayEndByThemselves) {
  EXPECT_EQ(run(shell("[ $RANK != 1 ] || exit 7; sleep 0.2; echo cleaned up; exit 1", 2),
                std::chrono::seconds(5)),
            7);
  EXPECT_THAT(text("out"), HasSubstr("cleaned up\n"));
}

TEST_F(Supervision, WhoIgnoresTermIsKilled) {
  const auto start = Clock::now();
  EXPECT_EQ(run(shell("trap '' TERM; [ $RANK != 0 ] || exit 3; while :; do sleep 0.1; done", 2)),
            3);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

// The others wait for it in a collective, whatever they answer: it does not come back, and nothing
// is lost. Had it saved, they would save too and end by themselves.
TEST_F(Supervision, ARankThatStopsBeforeTheFirstStepEndsAll) {
  LaunchPlan plan =
      shell("[ $RANK != 1 ] || exit 75; trap '' USR1; while :; do sleep 0.05; done", 3);
  plan.runs_recipe = true;
  grace_after_term_ = std::chrono::seconds(2);
  EXPECT_EQ(run(plan), kStoppedExitCode);
  EXPECT_EQ(text("err"), "");
}

TEST_F(Supervision, WhatARankLeftBehindIsKilled) {
  EXPECT_EQ(run(shell("sleep 60 & echo $! > $FOLDER/left", 1)), 0);
  std::string pid = text("left");
  pid.pop_back();
  for (int i = 0; i < 50 && !is_gone(pid); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(is_gone(pid));
}

// The launcher in a process of its own, so that it can be signalled.
class SignalledSupervision : public Supervision {
 protected:
  pid_t start(const LaunchPlan& plan) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(run(plan));
    wait_for("ready0");
    wait_for("ready1");
    return pid;
  }
  void wait_for(const char* file) {
    for (int i = 0; i < 500 && !fs::exists(folder_ / file); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  static int exit_code(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string pid_of(const char* file) {
    std::string pid = text(file);
    pid.pop_back();
    return pid;
  }
  void expect_gone(const char* file) {
    const std::string pid = pid_of(file);
    for (int i = 0; i < 100 && !is_gone(pid); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_TRUE(is_gone(pid)) << file;
  }
};

constexpr const char* kWaiting = "echo $$ > $FOLDER/pid$RANK; touch $FOLDER/ready$RANK; sleep 60";

TEST_F(SignalledSupervision, InterruptEndsAll) {
  const pid_t pid = start(shell(kWaiting, 2));
  ::kill(pid, SIGINT);
  EXPECT_EQ(exit_code(pid), 128 + SIGINT);
  expect_gone("pid0");
  expect_gone("pid1");
}

TEST_F(SignalledSupervision, TermReachesTheRanksWhoMayFinish) {
  const pid_t pid =
      start(shell("trap 'echo saved; exit 0' TERM; touch $FOLDER/ready$RANK;"
                  "while :; do sleep 0.05; done",
                  2));
  ::kill(pid, SIGTERM);
  EXPECT_EQ(exit_code(pid), 128 + SIGTERM);
  EXPECT_THAT(text("out"), HasSubstr("[rank 1] saved\n"));
}

TEST_F(SignalledSupervision, RunsOfARecipeThatComeToTheirEndAllTheSameHaveEndedWell) {
  LaunchPlan plan =
      shell("trap 'exit 0' TERM; touch $FOLDER/ready$RANK; while :; do sleep 0.05; done", 2);
  plan.runs_recipe = true;
  const pid_t pid = start(plan);
  ::kill(pid, SIGTERM);
  EXPECT_EQ(exit_code(pid), 0);
}

// One that dies of the request, since it has no answer to it yet, was told to stop: no failure.
TEST_F(SignalledSupervision, ARequestThatComesTooEarlyIsNoFailure) {
  LaunchPlan plan = shell("touch $FOLDER/ready$RANK; while :; do sleep 0.05; done", 2);
  plan.runs_recipe = true;
  const pid_t pid = start(plan);
  ::kill(pid, SIGUSR1);
  EXPECT_EQ(exit_code(pid), kStoppedExitCode);
  EXPECT_EQ(text("err"), "");
}

struct ElsewhereCase {
  bool was_told_to_stop;  // the other machine, which failed otherwise
  int ranks_end_with;     // when they are told to end
  int exit_code;
};

class Elsewhere : public SignalledSupervision,
                  public ::testing::WithParamInterface<ElsewhereCase> {};

// What ranks do that are ended beside a failure says nothing about it: all start again. A request
// that another machine was given is one to all.
TEST_P(Elsewhere, AFailureIsToldFromARequest) {
  const int port = reserve_port(0, /*listens=*/false)->number;
  const auto options = [&](bool is_host) {
    return MeetingOptions{.address = "127.0.0.1",
                          .port = port,
                          .num_machines = 2,
                          .settings = "1 rank",
                          .join_timeout = std::chrono::seconds(20),
                          .is_host = is_host};
  };
  LaunchPlan plan = shell(fmt::format("trap 'exit {}' TERM; touch $FOLDER/ready0 $FOLDER/ready1;"
                                      "while :; do sleep 0.05; done",
                                      GetParam().ranks_end_with),
                          1);
  plan.runs_recipe = true;
  Meeting host(options(true));
  const pid_t pid = ::fork();
  if (pid == 0) {
    Meeting guest(options(false));
    guest.begin_round(0);
    ::_exit(
        run_workers(plan, {.streams = {out_, err_}, .meeting = &guest, .patience = {}}).exit_code);
  }
  host.begin_round(0);
  wait_for("ready1");
  host.tell_failure("rank 1: broken", GetParam().was_told_to_stop, 128 + SIGTERM);
  EXPECT_EQ(exit_code(pid), GetParam().exit_code);
}

INSTANTIATE_TEST_SUITE_P(Supervision, Elsewhere,
                         ::testing::Values(ElsewhereCase{false, kStoppedExitCode, 1},
                                           ElsewhereCase{true, kStoppedExitCode, kStoppedExitCode},
                                           ElsewhereCase{true, 0, 0}, ElsewhereCase{true, 3, 1}));

struct StoppingCase {
  const char* phase;  // on the status page of every rank
  int hang_timeout_ms;
  bool may_end;  // after ten times the grace
};

class Stopping : public SignalledSupervision, public ::testing::WithParamInterface<StoppingCase> {};

TEST_P(Stopping, RanksThatSaveAreWaitedFor) {
  static_assert(offsetof(StatusPage, process) == 0);
  const std::string phase_at = std::to_string(offsetof(StatusPage, phase));
  LaunchPlan plan = shell(
      "page() { dd of=/proc/self/fd/$STRATA_STATUS_FD bs=1 seek=$1 conv=notrunc 2>/dev/null; };"
      "printf '\\001\\000\\000\\000' | page 0; printf '" +
          std::string(GetParam().phase) + "' | page " + phase_at +
          "; trap 'sleep 2; exit 75' TERM; touch $FOLDER/ready$RANK;"
          "while :; do sleep 0.05; done",
      2);
  plan.hang_timeout = std::chrono::milliseconds(GetParam().hang_timeout_ms);
  grace_after_term_ = std::chrono::milliseconds(200);
  const pid_t pid = start(plan);
  ::kill(pid, SIGTERM);
  EXPECT_EQ(exit_code(pid), GetParam().may_end ? 75 : 128 + SIGTERM);
}

INSTANTIATE_TEST_SUITE_P(Phases, Stopping,
                         ::testing::Values(StoppingCase{"saving checkpoint-7", 500, true},
                                           StoppingCase{"writing the result", 0, true},
                                           StoppingCase{"training", 60000, true},
                                           StoppingCase{"evaluating", 60000, true},
                                           StoppingCase{"evaluating the reference again", 60000,
                                                        true},
                                           StoppingCase{"evaluating the reference", 60000, false},
                                           StoppingCase{"training", 500, false},
                                           StoppingCase{"loading the model", 0, false}));

TEST_F(SignalledSupervision, UserSignalsArePassedOn) {
  const pid_t pid = start(shell(
      "trap 'echo got; exit 0' USR1; touch $FOLDER/ready$RANK; while :; do sleep 0.05; done", 2));
  ::kill(pid, SIGUSR1);
  EXPECT_EQ(exit_code(pid), 0);
  EXPECT_THAT(text("out"), HasSubstr("[rank 1] got\n"));
}

// Not even the moments before a rank asks for them. (Some shells clear what is blocked.)
TEST_F(Supervision, RequestsWaitInRanksThatTakeThem) {
  LaunchPlan plan = shell("", 1);
  plan.command = {"grep", "SigBlk", "/proc/self/status"};
  EXPECT_EQ(run(plan), 0);
  plan.runs_recipe = true;
  EXPECT_EQ(run(plan), 0);
  EXPECT_EQ(text("out"), fmt::format("SigBlk:\t{:016x}\nSigBlk:\t{:016x}\n", 0,
                                     1u << (SIGUSR1 - 1) | 1u << (SIGUSR2 - 1)));
}

TEST_F(SignalledSupervision, NoRankOutlivesAKilledLauncher) {
  const pid_t pid = start(shell(std::string("exec 2>/dev/null; ") + kWaiting, 2));
  ::kill(pid, SIGKILL);
  EXPECT_EQ(exit_code(pid), -SIGKILL);
  expect_gone("pid0");
  expect_gone("pid1");
}

TEST_F(Supervision, AProgramThatIsMissingIsAnError) {
  LaunchPlan plan;
  plan.command = {"/no/such/program"};
  EXPECT_THROW(run(plan), IoError);
}

}  // namespace
}  // namespace strata::launch
