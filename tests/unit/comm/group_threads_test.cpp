// Oracle: the contract of group.h: one thread at a time. A second one is told before it reaches the
// transport, and the first is none the worse for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include <ATen/ATen.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/comm/group.h"
#include "strata/comm/single_group.h"

namespace strata::comm {
namespace {

using strata::testing::message_of;
using ::testing::HasSubstr;

// Rank 3 of 4. A barrier stays inside until it is let go on; a broadcast fails.
class SlowGroup final : public Group {
 public:
  int rank() const override { return 3; }
  int size() const override { return 4; }
  Transport transport() const override { return Transport::kFake; }

  std::latch is_inside{1}, may_leave{1};
  int num_started = 0;

 private:
  std::unique_ptr<Work> start() {
    ++num_started;
    return completed_work();
  }
  std::unique_ptr<Work> start_all_gather(at::Tensor, at::Tensor) override { return start(); }
  std::unique_ptr<Work> start_reduce_scatter(at::Tensor, at::Tensor) override { return start(); }
  std::unique_ptr<Work> start_all_reduce(at::Tensor, Reduction) override { return start(); }
  std::unique_ptr<Work> start_broadcast(at::Tensor, int) override { throw CommError("lost"); }
  void meet() override {
    is_inside.count_down();
    may_leave.wait();
  }
  std::unique_ptr<Work> start_all_to_all(at::Tensor, at::Tensor) override { return start(); }
  std::unique_ptr<Work> start_scatter(at::Tensor, at::Tensor, int) override { return start(); }
};

TEST(GroupThreads, ASecondOneIsToldAtEveryCollective) {
  SlowGroup group;
  std::thread first([&] { group.barrier(); });
  group.is_inside.wait();
  const at::Tensor x = at::zeros({4});
  const auto told = [](auto&& call) { return message_of<InternalError>(call); };
  const std::string message = told([&] { group.all_gather(x, x); });
  EXPECT_THAT(message, HasSubstr("collective all-gather of rank 3: found another thread"));
  EXPECT_THAT(told([&] { group.reduce_scatter(x, x); }), HasSubstr("reduce-scatter"));
  EXPECT_THAT(told([&] { group.all_reduce(x); }), HasSubstr("all-reduce"));
  EXPECT_THAT(told([&] { group.broadcast(x, 0); }), HasSubstr("broadcast"));
  EXPECT_THAT(told([&] { group.barrier(); }), HasSubstr("barrier"));
  EXPECT_THAT(told([&] { group.all_to_all(x, x); }), HasSubstr("all-to-all"));
  EXPECT_THAT(told([&] { group.scatter(x, x, 0); }), HasSubstr("scatter"));
  EXPECT_EQ(group.num_started, 0);
  group.may_leave.count_down();
  first.join();
  group.all_reduce(x)->wait();  // another thread than before, but alone
  EXPECT_EQ(group.num_started, 1);
}

TEST(GroupThreads, AFailureLeavesTheGroupToOthers) {
  SlowGroup group;
  EXPECT_THROW(group.broadcast(at::zeros({1}), 0), CommError);
  group.all_reduce(at::zeros({1}))->wait();
  EXPECT_EQ(group.num_started, 1);
}

}  // namespace
}  // namespace strata::comm
