// Oracle: what a waiting process must do at each second, by hand.
#include "strata/data/store/lock_holder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/file.h"

namespace strata::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Watched {
  std::vector<std::string> said;
  HolderWatch watch{"k.tokens", [this](const std::string& line) { said.push_back(line); }};

  // Looks once a second at the same note; the seconds after which a word came.
  std::vector<int> seconds_of_words(const std::string& note, int seconds, bool& goes_on) {
    std::vector<int> words;
    for (int second = 1; second <= seconds && goes_on; ++second) {
      const size_t before = said.size();
      goes_on = watch.look(note, 1);
      if (said.size() > before) words.push_back(second);
    }
    return words;
  }
};

std::string note_of(ProcessIdentity process, int64_t rows = 0) {
  return HolderNote{.rows = rows, .num_signs = 1, .process = std::move(process)}.text();
}

ProcessIdentity elsewhere() {
  return {.text = "process 7 on node7", .boot = "b", .pid_namespace = "n", .pid = 7, .start = 1};
}

TEST(HolderNote, SaysWhatItWasMadeOf) {
  const HolderNote note{.rows = 12, .part = 0.41, .num_signs = 7, .process = elsewhere()};
  const HolderNote read = HolderNote::read(note.text());
  EXPECT_EQ(read.rows, 12);
  EXPECT_EQ(read.part, 0.41);
  EXPECT_EQ(read.num_signs, 7u);
  ASSERT_TRUE(read.process);
  EXPECT_EQ(read.process->text, "process 7 on node7");
  EXPECT_EQ(read.process->pid, 7);
  for (const char* half : {"", "12", "12 0.4", "12 0.4100 7 {\"owner\": \"proc", "x"}) {
    EXPECT_FALSE(HolderNote::read(half).process) << half;
  }
}

TEST(HolderWatch, OneElsewhereIsNamedAtGrowingIntervals) {
  Watched waiting;
  bool goes_on = true;
  EXPECT_TRUE(waiting.watch.look(note_of(elsewhere()), 1)) << "the first look begins";
  EXPECT_THAT(waiting.seconds_of_words(note_of(elsewhere()), 300, goes_on),
              ElementsAre(30, 60, 120, 180));
  EXPECT_FALSE(goes_on);
  EXPECT_THAT(waiting.said[0], HasSubstr("k.tokens: waiting for process 7 on node7 to prepare "
                                         "these rows, without a sign of it for 30 s; from 180 s"));
  EXPECT_THAT(waiting.said[3], HasSubstr("process 7 on node7 has given no sign for 180 s; this run "
                                         "prepares these rows itself"));
}

TEST(HolderWatch, SignsOfLifeAreWaitedFor) {
  Watched waiting;
  bool goes_on = true;
  for (int64_t rows = 0; rows < 50; ++rows) {
    EXPECT_TRUE(waiting.watch.look(note_of(elsewhere(), rows), 1));
    EXPECT_THAT(waiting.seconds_of_words(note_of(elsewhere(), rows), 20, goes_on), IsEmpty());
  }
  EXPECT_TRUE(goes_on);
}

// Such as one that was stopped itself and wakes up.
TEST(HolderWatch, OneLongPauseBetweenLooksIsNoSilence) {
  Watched waiting;
  EXPECT_TRUE(waiting.watch.look(note_of(elsewhere()), 1));
  EXPECT_TRUE(waiting.watch.look(note_of(elsewhere()), 10'000));
  EXPECT_THAT(waiting.said, IsEmpty());
}

TEST(HolderWatch, OneOfThisMachineThatLivesIsWaitedForLonger) {
  Watched waiting;
  bool goes_on = true;
  const std::string note = note_of(own_identity());
  EXPECT_TRUE(waiting.watch.look(note, 1));
  EXPECT_THAT(waiting.seconds_of_words(note, 179, goes_on), ElementsAre(30, 60, 120));
  EXPECT_TRUE(goes_on);
}

TEST(HolderWatch, OneThatIsGoneIsNotWaitedFor) {
  const pid_t child = fork();
  if (child == 0) pause();
  ProcessIdentity process = own_identity();
  process.pid = child;
  const std::string stat = read_file(fmt::format("/proc/{}/stat", child));
  size_t at = stat.rfind(')');
  for (int field = 3; field <= 22; ++field) at = stat.find(' ', at + 1);
  process.start = std::atoll(stat.c_str() + at);
  EXPECT_FALSE(is_gone(process) || is_stopped(process));
  kill(child, SIGSTOP);
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  EXPECT_TRUE(is_stopped(process));

  Watched stopped;
  bool goes_on = true;
  EXPECT_TRUE(stopped.watch.look(note_of(process), 1));
  EXPECT_THAT(stopped.seconds_of_words(note_of(process), 100, goes_on),
              ElementsAre(2, 4, 8, 16, 32, 60));
  EXPECT_THAT(stopped.said[0], HasSubstr("which a signal has stopped, to prepare"));

  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  EXPECT_TRUE(is_gone(process));
  EXPECT_FALSE(is_stopped(process));
  Watched gone;
  goes_on = true;
  EXPECT_TRUE(gone.watch.look(note_of(process), 1));
  EXPECT_THAT(gone.seconds_of_words(note_of(process), 100, goes_on), ElementsAre(2));
  EXPECT_FALSE(goes_on);
  EXPECT_THAT(gone.said[0], HasSubstr("is gone, and yet holds the lock; this run prepares"));
}

}  // namespace
}  // namespace strata::data
