// Oracle: the definition of each collective, on integers that floating point adds exactly. Ranks
// are threads of this process, each with its own connection.
#include "strata/comm/group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "on_ranks.h"
#include "strata/base/error.h"
#include "strata/comm/agreement.h"
#include "strata/comm/gloo_group.h"
#include "strata/comm/mesh.h"
#include "strata/comm/shm_group.h"
#include "strata/comm/tcp.h"

namespace strata::comm {
namespace {

class Transport : public testing::TestWithParam<bool> {
 protected:
  static std::string expected(int size) {
    if (size == 1) return "single";
    return GetParam() ? "shm" : "gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(, Transport, testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "shm" : "gloo"); });

TEST_P(Transport, CollectivesAreWhatTheyAreDefinedToBe) {
  for (int size : {1, 2, 3}) {
    on_ranks(size, GetParam(), [size](Rendezvous& rendezvous) {
      const auto group = rendezvous.make_group("test");
      EXPECT_EQ(group->transport(), expected(size));
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

TEST_P(Transport, AllGatherWorksInPlaceAndInBf16) {
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
TEST_P(Transport, ManyInFlightOfAnySize) {
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
TEST_P(Transport, SumsAreInRankOrderAndWiderThan16Bits) {
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

// The collectives whose theory is counted, a large one each: bytes [size * n] of four.
constexpr const char* kCounted[] = {"all-gather", "reduce-scatter", "all-reduce", "scatter",
                                    "all-to-all"};

void run_counted(Group& group, int which, int64_t n) {
  at::Tensor whole = at::ones({n * group.size()});
  at::Tensor part = at::ones({n});
  switch (which) {
    case 0:
      return group.all_gather(whole, part)->wait();
    case 1:
      return group.reduce_scatter(part, whole)->wait();
    case 2:
      return group.all_reduce(whole)->wait();
    case 4:
      return group.all_to_all(at::empty_like(whole), whole)->wait();
    default:
      return group.scatter(part, group.rank() == 0 ? whole : at::Tensor(), 0)->wait();
  }
}

// What the copying loops counted, summed over the ranks, is what all ranks had to send.
TEST(SharedMemory, WhatIsCopiedIsWhatTheoryAllows) {
  for (int size : {2, 3, 4}) {
    for (int which = 0; which < 5; ++which) {
      std::atomic<int64_t> received{0}, theory{0};
      on_ranks(size, [&](Rendezvous& rendezvous) {
        const auto group = rendezvous.make_group("test");
        ASSERT_EQ(group->received_bytes(), 0);
        run_counted(*group, which, /*n=*/48 * 12345);
        received += group->received_bytes().value();
        theory += group->traffic().sent_bytes;
      });
      EXPECT_GT(theory, 0);
      EXPECT_EQ(received, theory) << kCounted[which] << " of " << size;
    }
  }
}

// What the kernel counted of all connections of this process, which is all ranks.
TEST(Gloo, WhatGoesOverTcpIsWhatTheoryAllows) {
  constexpr int64_t kWords = 400000;
  for (int size : {2, 3, 4}) {
    for (int which = 0; which < 5; ++which) {
      std::atomic<int64_t> theory{0};
      int64_t sent = 0;
      on_ranks(size, /*shared_memory=*/false, [&](Rendezvous& rendezvous) {
        const auto group = rendezvous.make_group("test");
        group->barrier();
        const int64_t before = tcp_sent_bytes();
        group->barrier();
        run_counted(*group, which, kWords);
        theory += group->traffic().sent_bytes;
        group->barrier();
        if (group->rank() == 0) sent = tcp_sent_bytes() - before;
        group->barrier();
      });
      EXPECT_GE(sent, theory) << kCounted[which] << " of " << size;
      // Heads of Gloo's messages, and the barriers.
      EXPECT_LE(sent, theory + theory / 1000 + 4096 * size) << kCounted[which] << " of " << size;
    }
  }
}

TEST(SharedMemory, ARankThatLeavesIsNamedWithinASecond) {
  on_ranks(3, [](Rendezvous& rendezvous) {
    auto group = rendezvous.make_group("test");
    at::Tensor sum = at::ones({100000});
    group->all_reduce(sum)->wait();
    if (group->rank() == 1) return;
    const auto start = std::chrono::steady_clock::now();
    try {
      group->all_reduce(sum)->wait();
      ADD_FAILURE() << "went on without rank 1";
    } catch (const CommError& e) {
      EXPECT_NE(std::string(e.what()).find("rank 1 gone"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("all-reduce"), std::string::npos) << e.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
    // Nothing works after that, and says so at once.
    EXPECT_THROW(group->barrier(), CommError);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // rank 1 is named first
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

// A group of a time-out of its own: whoever gives up closes it, so that the late one is told within
// a second and no collective of it meets another one's.
TEST_P(Transport, AGroupThatTimedOutIsClosedForAll) {
  on_ranks(2, GetParam(), [](Rendezvous& rendezvous) {
    const auto world = rendezvous.make_group("world");
    const auto group = rendezvous.make_group("brief", {}, {.timeout = std::chrono::seconds(1)});
    group->barrier();
    if (group->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2000));
    const auto start = std::chrono::steady_clock::now();
    at::Tensor sum = at::ones({1}, at::kInt);
    for (int i = 0; i < 3; ++i) {
      try {
        group->all_reduce(sum)->wait();
        EXPECT_TRUE(group->rank() == 1 && i == 0) << i;  // all that it needs may be there by then
      } catch (const CommError&) {
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::milliseconds(group->rank() == 0 ? 1900 : 900));
    // The others of the same ranks are as they were.
    sum.fill_(group->rank() + 1);
    world->all_reduce(sum)->wait();
    EXPECT_EQ(sum.item<int>(), 3);
  });
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

TEST(Mesh, GroupsAreTheRowsAndColumnsOfTheMesh) {
  on_ranks(4, [](Rendezvous& rendezvous) {
    const Mesh mesh = make_mesh(rendezvous, {.shard_size = 2});
    const int rank = rendezvous.options().rank;
    at::Tensor in_shard = at::full({1}, rank);
    mesh.shard->all_reduce(in_shard)->wait();
    EXPECT_EQ(in_shard.item<int>(), rank < 2 ? 1 : 5);
    at::Tensor across = at::full({1}, rank);
    mesh.replicate->all_reduce(across)->wait();
    EXPECT_EQ(across.item<int>(), rank % 2 == 0 ? 2 : 4);
    EXPECT_FALSE(mesh.sequence);
    EXPECT_EQ(mesh.data_parallel_size(), 4);
  });
  on_ranks(4, [](Rendezvous& rendezvous) {
    const Mesh mesh = make_mesh(rendezvous, {.shard_size = 4, .sequence_size = 2});
    const int rank = rendezvous.options().rank;
    at::Tensor neighbours = at::full({1}, rank);
    mesh.sequence->all_reduce(neighbours)->wait();
    EXPECT_EQ(neighbours.item<int>(), rank < 2 ? 1 : 5);
    EXPECT_EQ(mesh.data_parallel_size(), 2);
    EXPECT_EQ(mesh.data_parallel_rank(), rank / 2);
    EXPECT_EQ(mesh.counts_rows(), rank % 2 == 0);
    mesh.world->barrier();  // rank 0 keeps the place where the others meet
  });
  EXPECT_THROW(make_fake_mesh(4, 3), ConfigError);
  EXPECT_THROW(make_fake_mesh(4, {.shard_size = 4, .sequence_size = 3}), ConfigError);
}

TEST(Agreement, OneFailureFailsAll) {
  on_ranks(3, [](Rendezvous& rendezvous) {
    const auto group = rendezvous.make_group("test");
    try {
      all_or_nothing(*group, "saving", [&] {
        if (group->rank() == 1) throw IoError(std::string("disk: full"));
      });
      ADD_FAILURE() << "rank " << group->rank() << " went on";
    } catch (const IoError&) {
      EXPECT_EQ(group->rank(), 1);
    } catch (const CommError& e) {
      EXPECT_NE(group->rank(), 1);
      EXPECT_NE(std::string(e.what()).find("rank 1"), std::string::npos);
    }
    // As long as rank 0's: a list of files, or nothing.
    for (const std::string& text :
         {std::string("hello"), std::string(), std::string(100'000, 'x')}) {
      EXPECT_EQ(broadcast_string(*group, group->rank() == 0 ? text : "other"), text);
    }
  });
}

// Rank 1 fails before a collective of the work that rank 0 is in.
TEST(Agreement, AFailureAmidCollectivesIsNotLostInTheirDifference) {
  on_ranks(2, [](Rendezvous& rendezvous) {
    const auto group = rendezvous.make_group("test");
    try {
      all_or_nothing(*group, "loading", [&] {
        if (group->rank() == 1) throw IoError(std::string("disk: full"));
        at::Tensor words = at::zeros({7});
        group->broadcast(words, 0)->wait();
        group->broadcast(words, 0)->wait();
      });
      ADD_FAILURE() << "rank " << group->rank() << " went on";
    } catch (const IoError& e) {
      EXPECT_EQ(group->rank(), 1);
      EXPECT_STREQ(e.what(), "disk: full");
    } catch (const CommError&) {
      EXPECT_EQ(group->rank(), 0);
    }
  });
}

TEST(Rendezvous, DifferentSettingsAreFoundBeforeTheFirstCollective) {
  try {
    on_ranks(2, [](Rendezvous& rendezvous) {
      rendezvous.require_same("settings", rendezvous.options().rank == 0 ? "a" : "b");
    });
    FAIL() << "went on with different settings";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("settings"), std::string::npos);
  }
}

}  // namespace
}  // namespace strata::comm
