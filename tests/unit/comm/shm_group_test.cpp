// Oracle: Gloo's sums to the bit, and errors that name the rank and its place. Ranks are threads of
// this process.
#include "strata/comm/shm_group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "../base/refused_calls.h"
#include "on_ranks.h"
#include "strata/base/error.h"
#include "strata/comm/gloo_group.h"
#include "strata/comm/liveness.h"

namespace strata::comm {
namespace {

TEST(SharedMemory, ReduceScatterEqualsGlooToTheBit) {
  on_ranks(3, [](Rendezvous& rendezvous) {
    std::string reason;
    const auto shm = make_shm_group(rendezvous, "a", {0, 1, 2}, reason);
    const auto gloo = make_gloo_group(rendezvous, "b", {0, 1, 2});
    ASSERT_TRUE(shm) << reason;
    const at::Tensor whole = at::sin(at::arange(300003, at::kFloat) * (shm->rank() + 0.7));
    at::Tensor ours = at::empty({100001}), theirs = at::empty({100001});
    shm->reduce_scatter(ours, whole.clone())->wait();
    gloo->reduce_scatter(theirs, whole.clone())->wait();
    EXPECT_TRUE(at::equal(ours, theirs));
    EXPECT_EQ(shm->traffic().sent_bytes, 2 * 100001 * 4);
    EXPECT_EQ(gloo->traffic().sent_bytes, 2 * 100001 * 4);
  });
}

// Found gone, not waited for until the time-out, whose message is another (the next test).
TEST(SharedMemory, ARankThatLeavesIsNamed) {
  on_ranks(3, [](Rendezvous& rendezvous) {
    auto group = rendezvous.make_group("test");
    at::Tensor sum = at::ones({100000});
    group->all_reduce(sum)->wait();
    if (group->rank() == 1) return;
    try {
      group->all_reduce(sum)->wait();
      ADD_FAILURE() << "went on without rank 1";
    } catch (const CommError& e) {
      EXPECT_NE(std::string(e.what()).find("rank 1 gone"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("all-reduce"), std::string::npos) << e.what();
    }
    // Nothing works after that.
    EXPECT_THROW(group->barrier(), CommError);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // rank 1 is named first
  });
}

// As it is asked from another thread, which has no wait of its own.
TEST(SharedMemory, ARankThatLeavesIsSeenWithoutAWait) {
  on_ranks(2, [](Rendezvous& rendezvous) {
    auto group = rendezvous.make_group("test");
    EXPECT_FALSE(has_lost_peer(*group));
    group->barrier();
    if (group->rank() == 1) return;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!has_lost_peer(*group) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(has_lost_peer(*group));
  });
}

TEST(SharedMemory, ALateRankIsNamedWithItsPlace) {
  const auto body = [](Rendezvous& rendezvous) {
    auto group = rendezvous.make_group("test");
    group->barrier();
    if (group->rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      return;
    }
    at::Tensor gathered = at::empty({20});
    try {
      group->all_gather(gathered, at::ones({10}))->wait();
      ADD_FAILURE() << "went on without rank 1";
    } catch (const CommError& e) {
      const std::string what = e.what();
      EXPECT_NE(what.find("all-gather of rank 0: found nothing of rank 1 for 1 s"),
                std::string::npos)
          << what;
      EXPECT_NE(what.find("it is at collective 1"), std::string::npos) << what;
    }
  };
  on_ranks(2, /*shared_memory=*/true, body, std::chrono::seconds(1));
}

TEST(SharedMemory, DifferentCollectivesAreAnErrorNotGarbage) {
  on_ranks(2, [](Rendezvous& rendezvous) {
    const auto group = rendezvous.make_group("test");
    at::Tensor tensor = at::ones({group->rank() == 0 ? 10 : 11});
    try {
      group->all_reduce(tensor)->wait();
      ADD_FAILURE() << "added tensors of different sizes";
    } catch (const CommError& e) {
      const std::string what = e.what();
      EXPECT_TRUE(what.find("10 elements") != std::string::npos ||
                  what.find("gone") != std::string::npos)
          << what;
    }
  });
}

// The groups go through TCP then, which nobody was told.
TEST(SharedMemory, WhereItIsRefusedTheReasonIsToldOnce) {
  EXPECT_TRUE(testing::holds_in_child([] {
    testing::refuse_call(SYS_memfd_create, EPERM);
    std::vector<std::string> told;
    const auto use_two_groups = [](Rendezvous& rendezvous) {
      const auto first = rendezvous.make_group("a"), second = rendezvous.make_group("b");
      first->barrier();
      second->barrier();
      if (second->transport() != Transport::kGloo) throw InternalError("found shared memory");
    };
    on_ranks(2, /*shared_memory=*/true, use_two_groups, std::chrono::seconds(30),
             [&](const std::string& line) { told.push_back(line); });
    return told.size() == 1 &&
           told[0].find("(no memory to share: operation not permitted)") != std::string::npos;
  }));
}

}  // namespace
}  // namespace strata::comm
