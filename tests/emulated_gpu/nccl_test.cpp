// Oracle: what NCCL promises of an abort: kernels end without an error of the stream, and the call
// returns when the other ranks have closed their connections. Ranks are processes, of which one
// ends, freezes or breaks; what the others do is their exit code.
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "../unit/comm/listening_port.h"
#include "strata/base/error.h"
#include "strata/base/status_page.h"
#include "strata/comm/liveness.h"
#include "strata/comm/rendezvous.h"

namespace strata::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr int kPassed = 0, kFailed = 1;

struct Rank {
  Rendezvous& rendezvous;
  Status& status;
  Group& group;
  at::Tensor ones;

  void sum() { group.all_reduce(ones)->wait(); }
};

// Two processes with a GPU each; `work` returns their exit codes, or throws.
class NcclRanks : public testing::Test {
 protected:
  using Work = std::function<int(Rank&)>;

  void start(seconds timeout, const Work& first, const Work& second) {
    ::setenv("EMULATED_GPUS", "2", /*replace=*/1);
    const ListeningPort port = listening_port();
    for (int rank = 0; rank < 2; ++rank) {
      const pid_t process = ::fork();
      if (process == 0) ::_exit(live(rank, port, timeout, rank == 0 ? first : second));
      processes_.push_back(process);
    }
  }
  ~NcclRanks() override {
    for (const pid_t process : processes_) {
      if (process > 0) ::kill(process, SIGKILL);
      if (process > 0) ::waitpid(process, nullptr, 0);
    }
    ::unsetenv("EMULATED_GPUS");
    ::unsetenv("EMULATED_NCCL_BREAKS");
  }

  // The exit code; -1: it goes on after so long.
  int code_of(int rank, seconds limit) {
    const auto deadline = Clock::now() + limit;
    int state = 0;
    while (::waitpid(processes_[static_cast<size_t>(rank)], &state, WNOHANG) == 0) {
      if (Clock::now() > deadline) return -1;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    processes_[static_cast<size_t>(rank)] = 0;
    return WIFEXITED(state) ? WEXITSTATUS(state) : -2;
  }

 private:
  static int live(int rank, const ListeningPort& port, seconds timeout, const Work& work) {
    try {
      const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(rank));
      at::accelerator::setDeviceIndex(device.index());
      Status status;
      Rendezvous rendezvous({.rank = rank,
                             .world_size = 2,
                             .port = port.number,
                             .listen_descriptor = rank == 0 ? port.descriptor : -1,
                             .timeout = timeout,
                             .device = device,
                             .status = &status});
      const auto group = rendezvous.make_group("test");
      Rank self{rendezvous, status, *group, at::ones({4}, at::TensorOptions().device(device))};
      self.sum();
      return work(self);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      return kFailed;
    }
  }

  std::vector<pid_t> processes_;
};

int sleep_for_ever(Rank&) {
  std::this_thread::sleep_for(std::chrono::hours(1));
  return kPassed;
}

// Whether `work` throws a CommError that holds `words`.
bool throws(const std::function<void()>& work, const std::string& words) {
  try {
    work();
  } catch (const CommError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return std::string(error.what()).find(words) != std::string::npos;
  }
  return false;
}

// Its neighbour waits in NCCL, and with it the end of the communicator.
TEST_F(NcclRanks, OneThatFailsEndsWithinSeconds) {
  start(
      seconds(120), [](Rank& rank) { return rank.sum(), kPassed; },
      [](Rank&) -> int { throw CommError("of its own"); });
  EXPECT_EQ(code_of(1, seconds(15)), kFailed);
}

// The neighbour is seen to have ended long before the time-out.
TEST_F(NcclRanks, OneThatIsLeftAloneEndsWithinSeconds) {
  const auto wait = [](Rank& rank) {
    return throws([&] { rank.sum(); }, "although a rank of group test (nccl)") ? kPassed : kFailed;
  };
  start(seconds(120), wait, [](Rank&) { return kPassed; });
  EXPECT_EQ(code_of(1, seconds(30)), kPassed);
  EXPECT_EQ(code_of(0, seconds(20)), kPassed);
}

TEST_F(NcclRanks, OneWhoseNeighbourIsFrozenEndsAfterTheTimeout) {
  start(
      seconds(3),
      [](Rank& rank) {
        const auto begin = Clock::now();
        const bool is_told = throws([&] { rank.sum(); }, "within ddp_timeout");
        return is_told && Clock::now() - begin < seconds(12) ? kPassed : kFailed;
      },
      [](Rank&) {
        ::raise(SIGSTOP);
        return kPassed;
      });
  EXPECT_EQ(code_of(0, seconds(40)), kPassed);
}

// What the launcher reads of a rank whose host stands behind its GPU.
TEST_F(NcclRanks, TheStatusPageTellsWhatAGpuWaitsFor) {
  start(
      seconds(120),
      [](Rank& rank) -> int {
        std::thread host([&] {
          try {
            rank.sum();
          } catch (const std::exception&) {
          }
        });
        const auto deadline = Clock::now() + seconds(10);
        StatusReading reading;
        do {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          reading = read_status(rank.status.page());
        } while (reading.group != "test (nccl)" && Clock::now() < deadline);
        std::fprintf(stderr, "%s %s\n", reading.collective.c_str(), reading.group.c_str());
        // Of which number an emulated GPU does not say while it works: it is asked for nothing
        // then.
        ::_exit(reading.collective == "all-reduce" && reading.number > 0 ? kPassed : kFailed);
      },
      sleep_for_ever);
  EXPECT_EQ(code_of(0, seconds(40)), kPassed);
}

// The host is let go without an error of its stream, and with what was there before.
TEST_F(NcclRanks, ABrokenCollectiveIsKnownBehindTheWait) {
  ::setenv("EMULATED_NCCL_BREAKS", "2", /*replace=*/1);
  const auto work = [](Rank& rank) {
    const auto is_known = [&] {
      return throws([&] { require_alive(rank.group); }, "found an error of NCCL");
    };
    rank.ones.fill_(1);
    try {
      rank.sum();
    } catch (const CommError&) {  // the watch was quicker
      return is_known() ? kPassed : kFailed;
    }
    const float found = rank.ones.sum().item<float>();
    return found == 4 && is_known() ? kPassed : kFailed;
  };
  start(seconds(120), work, work);
  EXPECT_EQ(code_of(0, seconds(30)), kPassed);
  EXPECT_EQ(code_of(1, seconds(30)), kPassed);
}

}  // namespace
}  // namespace strata::comm
