// Oracle: the definition of each collective, on integers that floating point adds exactly. Ranks
// are threads of this process, each with its own connection.
#include "strata/comm/group.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <future>

#include "../temporary_folder.h"
#include "on_ranks.h"
#include "strata/base/error.h"

namespace strata::comm {
namespace {

class Transports : public ::testing::TestWithParam<bool> {
 protected:
  static std::string_view expected(int size) {
    if (size == 1) return "single";
    return GetParam() ? "shm" : "gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(, Transports, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "shm" : "gloo"); });

TEST_P(Transports, CollectivesAreWhatTheyAreDefinedToBe) {
  for (int size : {1, 2, 3}) {
    on_ranks(size, GetParam(), [size](Rendezvous& rendezvous) {
      const auto group = rendezvous.make_group("test");
      EXPECT_EQ(name_of(group->transport()), expected(size));
      const int rank = group->rank();
      const int64_t n = 5;
      const at::Tensor mine = at::arange(n, at::kFloat) + 100 * rank;

      at::Tensor gathered = at::empty({size * n});
      group->all_gather(gathered, mine)->wait();
      at::Tensor scattered = at::empty({n});
      at::Tensor whole = at::arange(size * n, at::kFloat) + rank;
      group->reduce_scatter(scattered, whole)->wait();
      at::Tensor sum = mine.clone();
      group->all_reduce(sum)->wait();
      at::Tensor largest = mine.clone();
      group->all_reduce(largest, Reduction::kMax)->wait();
      at::Tensor from_last = mine.clone();
      group->broadcast(from_last, size - 1)->wait();
      at::Tensor dealt = at::empty({n});
      const at::Tensor to_deal = rank == size - 1 ? at::arange(size * n, at::kFloat) : at::Tensor();
      group->scatter(dealt, to_deal, size - 1)->wait();
      at::Tensor exchanged = at::empty({size * n});
      group->all_to_all(exchanged, at::arange(size * n, at::kFloat) + 100 * rank)->wait();
      group->barrier();

      const at::Tensor base = at::arange(n, at::kFloat);
      for (int r = 0; r < size; ++r) {
        EXPECT_TRUE(at::equal(gathered.narrow(0, r * n, n), base + 100 * r));
        EXPECT_TRUE(at::equal(exchanged.narrow(0, r * n, n), base + rank * n + 100 * r));
      }
      const float ranks_sum = static_cast<float>(size * (size - 1) / 2);
      EXPECT_TRUE(at::equal(scattered, (base + rank * n) * size + ranks_sum));
      EXPECT_TRUE(at::equal(sum, base * size + 100 * ranks_sum));
      EXPECT_TRUE(at::equal(largest, base + 100 * (size - 1)));
      EXPECT_TRUE(at::equal(from_last, base + 100 * (size - 1)));
      EXPECT_TRUE(at::equal(dealt, base + rank * n));
    });
  }
}

TEST_P(Transports, AllGatherWorksInPlaceAndInBf16) {
  on_ranks(2, GetParam(), [](Rendezvous& rendezvous) {
    const auto group = rendezvous.make_group("test");
    at::Tensor whole = at::zeros({64}, at::kBFloat16);
    at::Tensor own = whole.narrow(0, 32 * group->rank(), 32);
    own.fill_(group->rank() + 1);
    group->all_gather(whole, own)->wait();
    EXPECT_TRUE(at::equal(whole.narrow(0, 0, 32), at::ones({32}, at::kBFloat16)));
    EXPECT_TRUE(at::equal(whole.narrow(0, 32, 32), at::full({32}, 2, at::kBFloat16)));
  });
}

// Several in flight, waited for in another order than started, of sizes around the pieces' borders.
TEST_P(Transports, ManyInFlightOfAnySize) {
  for (int size : {2, 3}) {
    on_ranks(size, GetParam(), [size](Rendezvous& rendezvous) {
      const auto group = rendezvous.make_group("test");
      const int rank = group->rank();
      for (int64_t n : {1, 1023, 131072, 131073, 500001}) {
        const at::Tensor mine = at::arange(n, at::kDouble).to(at::kFloat) + rank;
        at::Tensor gathered = at::empty({size * n});
        at::Tensor whole = (at::arange(size * n, at::kDouble) + rank).to(at::kFloat);
        // The reduce-scatter may change its input.
        const at::Tensor whole_sent = whole.clone();
        at::Tensor scattered = at::empty({n});
        at::Tensor sum = mine.clone();
        at::Tensor sent = mine.clone();
        auto gather = group->all_gather(gathered, mine);
        auto scatter = group->reduce_scatter(scattered, whole);
        auto reduce = group->all_reduce(sum);
        auto broadcast = group->broadcast(sent, 1);
        // In place on the root.
        at::Tensor parts = at::arange(size * n, at::kDouble).to(at::kFloat);
        at::Tensor part = rank == 1 ? parts.narrow(0, n, n) : at::empty({n});
        auto deal = group->scatter(part, rank == 1 ? parts : at::Tensor(), 1);
        at::Tensor exchanged = at::empty({size * n});
        auto exchange = group->all_to_all(exchanged, whole_sent);
        exchange->wait();
        deal->wait();
        reduce->wait();
        scatter->wait();
        broadcast->wait();
        gather->wait();
        const at::Tensor base = at::arange(n, at::kDouble).to(at::kFloat);
        for (int r = 0; r < size; ++r) {
          ASSERT_TRUE(at::equal(gathered.narrow(0, r * n, n), base + r)) << n;
          const at::Tensor received = (at::arange(n, at::kDouble) + rank * n + r).to(at::kFloat);
          ASSERT_TRUE(at::equal(exchanged.narrow(0, r * n, n), received)) << n;
        }
        const float ranks_sum = static_cast<float>(size * (size - 1) / 2);
        ASSERT_TRUE(at::equal(sum, base * size + ranks_sum)) << n;
        ASSERT_TRUE(at::equal(scattered, (base + rank * n) * size + ranks_sum)) << n;
        ASSERT_TRUE(at::equal(sent, base + 1)) << n;
        ASSERT_TRUE(at::equal(part, (at::arange(n, at::kDouble) + rank * n).to(at::kFloat))) << n;
      }
    });
  }
}

// Values whose sum depends on the order of addition; the order is from rank 0 upwards.
TEST_P(Transports, SumsAreInRankOrderAndWiderThan16Bits) {
  constexpr int kRanks = 3;
  const auto value_of = [](int rank, int64_t n) {
    return at::sin(at::arange(n, at::kDouble) * (rank + 1)) * std::pow(10.0, rank);
  };
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (int64_t n : {7, 5000, 400000}) {
      const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
      at::Tensor expected = value_of(0, n).to(type).to(wide);
      for (int r = 1; r < kRanks; ++r) expected = expected + value_of(r, n).to(type).to(wide);
      expected = expected.to(type);
      on_ranks(kRanks, GetParam(), [&](Rendezvous& rendezvous) {
        const auto group = rendezvous.make_group("test");
        at::Tensor sum = value_of(group->rank(), n).to(type);
        at::Tensor scattered = at::empty({n}, type);
        group->reduce_scatter(scattered, sum.repeat({kRanks}))->wait();
        ASSERT_TRUE(at::equal(scattered, expected)) << type << " " << n;
        // Gloo adds wide types in an order of its own.
        if (!GetParam() && type == wide) return;
        for (int again = 0; again < 2; ++again) {
          at::Tensor copy = sum.clone();
          group->all_reduce(copy)->wait();
          ASSERT_TRUE(at::equal(copy, expected)) << type << " " << n;
        }
      });
    }
  }
}

// A group of a time-out of its own: whoever gives up closes it, so that the late one is told and no
// collective of it meets another one's. The late one begins when the other has given up on all, and
// would itself wait for an hour.
TEST_P(Transports, AGroupThatTimedOutIsClosedForAll) {
  // What a collective that is not the first says of a time-out of its own: Gloo's words, and ours.
  constexpr const char* kWaitedAgain = "Timed out waiting|this rank at [23]";
  std::promise<void> has_given_up;
  on_ranks(2, GetParam(), [&](Rendezvous& rendezvous) {
    const auto world = rendezvous.make_group("world");
    const bool is_late = world->rank() == 1;
    const auto group = rendezvous.make_group(
        "brief", {}, {.timeout = is_late ? std::chrono::hours(1) : std::chrono::seconds(1)});
    if (is_late) has_given_up.get_future().wait();
    std::vector<std::string> ends;
    at::Tensor sum = at::ones({1}, at::kInt);
    for (int i = 0; i < 3; ++i) {
      ends.push_back(testing::message_of<CommError>([&] { group->all_reduce(sum)->wait(); }));
    }
    if (!is_late) has_given_up.set_value();
    // All that the late one's first needs may be there.
    EXPECT_TRUE(is_late || !ends[0].empty());
    for (const std::string& end : {ends[1], ends[2]}) {
      EXPECT_NE(end, "");
      EXPECT_THAT(end, ::testing::Not(::testing::ContainsRegex(kWaitedAgain)));
    }
    // The others of the same ranks are as they were.
    sum.fill_(world->rank() + 1);
    world->all_reduce(sum)->wait();
    EXPECT_EQ(sum.item<int>(), 3);
  });
}

}  // namespace
}  // namespace strata::comm
