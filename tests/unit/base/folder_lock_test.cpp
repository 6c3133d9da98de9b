// Oracle: of any number of owners, threads or processes, one at a time holds a folder; what a
// killed one leaves holds nothing. With flock(2), and on a file system that has no locks.
#include "strata/base/folder_lock.h"

#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"

namespace strata {
namespace {

namespace fs = std::filesystem;
using strata::testing::memory_or_disk;
using strata::testing::message_of;
using strata::testing::TemporaryFolder;
using ::testing::HasSubstr;

FolderLock::Flock refusing(int error) {
  return [error](int, int) {
    errno = error;
    return -1;
  };
}

// What file systems without locks answer.
const int kWithoutLocks[] = {ENOLCK, ENOSYS, EOPNOTSUPP, EINVAL};

std::string refusal_of(const fs::path& folder, const FolderLock::Flock& flock) {
  return message_of<ConfigError>([&] { FolderLock lock(folder, flock); });
}

// A process that holds the folder until it is killed.
class Holder {
 public:
  Holder(const fs::path& folder, const FolderLock::Flock& flock) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      const FolderLock lock(folder, flock);
      if (::write(ends[1], "x", 1) == 1) ::pause();
      ::_exit(1);
    }
    char held = 0;
    EXPECT_EQ(::read(ends[0], &held, 1), 1);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Holder() { end(); }
  pid_t pid() const { return pid_; }
  void kill() { ::kill(pid_, SIGKILL); }
  void end() {
    if (pid_ < 0) return;
    kill();
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

TEST(FolderLock, OneProcessHoldsAFolderUntilItIsGone) {
  for (const int error : {0, ENOLCK}) {
    const TemporaryFolder folder;
    const auto flock = error == 0 ? FolderLock::Flock(::flock) : refusing(error);
    Holder holder(folder.path(), flock);
    const std::string message = refusal_of(folder.path(), flock);
    EXPECT_THAT(message, HasSubstr(fmt::format("found that process {} on ", holder.pid())));
    EXPECT_EQ(message.find(".lock-owner") != std::string::npos, error != 0) << message;
    holder.end();
    FolderLock lock(folder.path(), flock);
    EXPECT_EQ(lock.is_by_name(), error != 0);
    EXPECT_EQ(read_file(folder / ".lock"), lock.owner());
    EXPECT_THAT(lock.owner(), HasSubstr(fmt::format("process {} on ", ::getpid())));
  }
}

// A launcher that has not asked yet how its rank ended.
TEST(FolderLock, AProcessOfWhichOnlyItsNumberIsLeftHoldsNothing) {
  const TemporaryFolder folder;
  Holder holder(folder.path(), refusing(ENOLCK));
  holder.kill();
  siginfo_t ended{};
  ::waitid(P_PID, static_cast<id_t>(holder.pid()), &ended, WEXITED | WNOWAIT);
  EXPECT_EQ(refusal_of(folder.path(), refusing(ENOLCK)), "");
}

TEST(FolderLock, EveryAnswerOfAFileSystemWithoutLocksIsMadeGood) {
  for (const int error : kWithoutLocks) {
    const TemporaryFolder folder;
    {
      const FolderLock lock(folder.path(), refusing(error));
      EXPECT_TRUE(lock.is_by_name());
      EXPECT_THAT(refusal_of(folder.path(), refusing(error)), HasSubstr("expected one run"));
    }
    EXPECT_TRUE(fs::is_empty(folder.path()));
    EXPECT_EQ(refusal_of(folder.path(), refusing(error)), "");
  }
}

TEST(FolderLock, ASignalDoesNotCountAsAnAnswer) {
  const TemporaryFolder folder;
  int calls = 0;
  const FolderLock lock(folder.path(), [&](int descriptor, int operation) {
    if (++calls < 4) {
      errno = EINTR;
      return -1;
    }
    return ::flock(descriptor, operation);
  });
  EXPECT_EQ(calls, 4);
  EXPECT_FALSE(lock.is_by_name());
}

// Whoever cannot tell leaves the file alone and says what to remove.
TEST(FolderLock, AnOwnerThatMayLiveElsewhereIsNamed) {
  const TemporaryFolder folder;
  Json own;
  {
    const FolderLock lock(folder.path(), refusing(ENOLCK));
    own = parse_json(read_file(folder / ".lock-owner"), "own");
  }
  struct Row {
    const char* key;
    Json value;
    bool is_taken_over;
  };
  for (const Row& row :
       {Row{"boot", "another machine's, or before a restart", false},
        Row{"pid_namespace", "pid:[1]", false}, Row{"pid_namespace", "", false},
        Row{"pid", 999'999'999, true}, Row{"start", 1, true}, Row{"pid", "no number", false}}) {
    Json other = own;
    other[row.key] = row.value;
    other["owner"] = "process 12 on node-b since yesterday";
    folder.put(".lock-owner", other.dump());
    const std::string message = refusal_of(folder.path(), refusing(ENOLCK));
    if (row.is_taken_over) {
      EXPECT_EQ(message, "") << row.key;
      EXPECT_FALSE(fs::exists(folder / ".lock-owner")) << row.key;
      continue;
    }
    EXPECT_THAT(message,
                HasSubstr("if that process is gone, remove " + (folder / ".lock-owner").string()));
    EXPECT_EQ(read_file(folder / ".lock-owner"), other.dump());
  }
  for (const char* text : {"", "{", "[]"}) {
    folder.put(".lock-owner", text);
    EXPECT_THAT(refusal_of(folder.path(), refusing(ENOLCK)),
                HasSubstr("a process that has not said its name"));
  }
}

// A run that was taken for dead must not remove its successor's file.
TEST(FolderLock, OnlyTheOwnFileIsRemoved) {
  const TemporaryFolder folder;
  {
    const FolderLock lock(folder.path(), refusing(ENOLCK));
    fs::remove(folder / ".lock-owner");
    folder.put(".lock-owner", "a successor's");
  }
  EXPECT_EQ(read_file(folder / ".lock-owner"), "a successor's");
}

// Its name goes while another one is being told of it.
TEST(FolderLock, AHolderThatGoesAtThatMomentIsNamedAllTheSame) {
  const TemporaryFolder folder;
  for (const char* text : {"process 12 on node-b", ""}) {
    folder.put(".lock", text);
    const std::string message = refusal_of(folder.path(), [&](int, int) {
      fs::remove(folder / ".lock");
      errno = EWOULDBLOCK;
      return -1;
    });
    EXPECT_THAT(message, HasSubstr(*text ? text : "another process"));
  }
}

// As by hand, or by a cleaner: what has the name now is its successor's.
TEST(FolderLock, ALockThatIsASuccessorsStays) {
  for (const int error : {0, ENOLCK}) {
    const TemporaryFolder folder;
    const auto flock = error == 0 ? FolderLock::Flock(::flock) : refusing(error);
    auto first = std::make_unique<FolderLock>(folder.path(), flock);
    fs::remove(folder / (error == 0 ? ".lock" : ".lock-owner"));
    const FolderLock second(folder.path(), flock);
    first.reset();
    EXPECT_EQ(read_file(folder / ".lock"), second.owner());
    EXPECT_THAT(refusal_of(folder.path(), flock), HasSubstr("expected one run"));
  }
}

// Takes the folder, however often it is refused, and counts one up in it.
void count_up(const TemporaryFolder& folder, const FolderLock::Flock& flock, bool dies) {
  while (true) {
    try {
      const FolderLock lock(folder.path(), flock);
      const int count = std::stoi(read_file(folder / "counter"));
      ::sched_yield();
      write_file_atomically(folder / "counter", std::to_string(count + 1));
      if (dies) ::_exit(0);
      return;
    } catch (const ConfigError&) {
      ::usleep(200);
    }
  }
}

// Runs `work` in a process of its own.
pid_t in_a_process(const std::function<void()>& work) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  try {
    work();
  } catch (...) {
    ::_exit(2);
  }
  ::_exit(0);
}

void expect_success(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

// Processes that all find what a dead one left, and want it; with and without dying in their turn.
TEST(FolderLock, OfManyAtOnceOneHolds) {
  for (const bool dies : {false, true}) {
    for (const int error : {0, ENOLCK}) {
      const TemporaryFolder folder(memory_or_disk());
      const auto flock = error == 0 ? FolderLock::Flock(::flock) : refusing(error);
      Holder(folder.path(), flock).end();
      folder.put("counter", "0");
      constexpr int kProcesses = 6, kRounds = 8;
      std::vector<pid_t> children;
      for (int i = 0; i < kProcesses; ++i) {
        children.push_back(in_a_process([&] {
          for (int round = 0; round < kRounds; ++round) {
            if (!dies) {
              count_up(folder, flock, dies);
              continue;
            }
            const pid_t dying = in_a_process([&] { count_up(folder, flock, dies); });
            int status = 0;
            ::waitpid(dying, &status, 0);
            if (status != 0) ::_exit(3);
          }
        }));
      }
      for (const pid_t pid : children) expect_success(pid);
      EXPECT_EQ(read_file(folder / "counter"), std::to_string(kProcesses * kRounds)) << error;
    }
  }
}

}  // namespace
}  // namespace strata
