// Oracle: the same collectives without staging, and sums by hand. What a GPU's tensors go through
// is the same code: only the copies cross a bus there.
#include "strata/comm/staged_group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "strata/comm/fake_group.h"
#include "strata/comm/single_group.h"

namespace strata::comm {
namespace {

std::unique_ptr<Group> staged(int rank, int size) {
  return make_staged_group(std::make_unique<FakeGroup>(rank, size));
}

TEST(StagedGroup, BringsResultsBackWhenWaitedFor) {
  const auto group = staged(1, 3);
  const at::Tensor in = at::arange(4, at::kFloat);
  at::Tensor out = at::full({12}, -1.0f);
  const auto work = group->all_gather(out, in);
  EXPECT_TRUE(out.eq(-1).all().item<bool>());  // nothing before wait()
  in.fill_(9);                                 // what was sent is a copy
  work->wait();
  EXPECT_TRUE(at::equal(out, at::arange(4, at::kFloat).repeat({3})));

  at::Tensor sum = at::zeros({2});
  group->reduce_scatter(sum, at::arange(6, at::kFloat))->wait();
  EXPECT_TRUE(at::equal(sum, at::tensor({6.0f, 9.0f})));  // three times rank 1's part

  at::Tensor all = at::ones({5});
  group->all_reduce(all)->wait();
  EXPECT_TRUE(all.eq(3).all().item<bool>());
  group->broadcast(all, 0)->wait();
  at::Tensor exchanged = at::zeros({6});
  group->all_to_all(exchanged, at::arange(6, at::kFloat))->wait();
  EXPECT_TRUE(at::equal(exchanged, at::tensor({2.0f, 3.0f}).repeat({3})));  // rank 1's parts
  group->barrier();
  EXPECT_EQ(group->rank(), 1);
  EXPECT_EQ(group->size(), 3);
}

TEST(StagedGroup, GathersIntoItsOwnSliceAndCountsWhatItSends) {
  const auto group = staged(0, 2);
  at::Tensor out = at::zeros({8});
  out.narrow(0, 0, 4).fill_(5);
  group->all_gather(out, out.narrow(0, 0, 4))->wait();
  EXPECT_TRUE(out.eq(5).all().item<bool>());
  EXPECT_EQ(group->traffic().sent_bytes, 4 * 4);
  EXPECT_EQ(group->traffic().all_gathers, 1);
  at::Tensor part = at::zeros({3});
  group->scatter(part, at::arange(6, at::kFloat), /*root=*/0)->wait();
  EXPECT_TRUE(at::equal(part, at::arange(3, at::kFloat)));
  EXPECT_EQ(group->traffic().sent_bytes, 4 * 4 + 3 * 4);
}

}  // namespace
}  // namespace strata::comm
