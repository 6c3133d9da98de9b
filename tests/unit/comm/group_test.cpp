// Oracle: the definition of each collective, on integers that floating point adds exactly. Ranks
// are threads of this process, each with its own connection.
#include "strata/comm/group.h"

#include <gtest/gtest.h>

#include <thread>

#include "strata/base/error.h"
#include "strata/comm/agreement.h"
#include "strata/comm/mesh.h"
#include "strata/comm/rendezvous.h"

namespace strata::comm {
namespace {

int free_port() {
  // Any port that this process tree is unlikely to use twice while the test runs.
  static int port = 20000 + static_cast<int>(::getpid() % 20000);
  return ++port;
}

// Runs `body(rendezvous)` on `size` ranks and rethrows what any of them threw.
void on_ranks(int size, const std::function<void(Rendezvous&)>& body) {
  const int port = free_port();
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Rendezvous rendezvous(
            {.rank = rank, .world_size = size, .port = port, .timeout = std::chrono::seconds(30)});
        body(rendezvous);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

TEST(GlooGroup, CollectivesAreWhatTheyAreDefinedToBe) {
  for (int size : {1, 2, 3}) {
    on_ranks(size, [size](Rendezvous& rendezvous) {
      const auto group = rendezvous.make_group("test");
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
      group->barrier();

      const at::Tensor base = at::arange(n, at::kFloat);
      for (int r = 0; r < size; ++r) {
        EXPECT_TRUE(at::equal(gathered.narrow(0, r * n, n), base + 100 * r));
      }
      const float ranks_sum = static_cast<float>(size * (size - 1) / 2);
      EXPECT_TRUE(at::equal(scattered, (base + rank * n) * size + ranks_sum));
      EXPECT_TRUE(at::equal(sum, base * size + 100 * ranks_sum));
      EXPECT_TRUE(at::equal(largest, base + 100 * (size - 1)));
      EXPECT_TRUE(at::equal(from_last, base + 100 * (size - 1)));
    });
  }
}

TEST(GlooGroup, AllGatherWorksInPlaceAndInBf16) {
  on_ranks(2, [](Rendezvous& rendezvous) {
    const auto group = rendezvous.make_group("test");
    at::Tensor whole = at::zeros({64}, at::kBFloat16);
    at::Tensor own = whole.narrow(0, 32 * group->rank(), 32);
    own.fill_(group->rank() + 1);
    group->all_gather(whole, own)->wait();
    EXPECT_TRUE(at::equal(whole.narrow(0, 0, 32), at::ones({32}, at::kBFloat16)));
    EXPECT_TRUE(at::equal(whole.narrow(0, 32, 32), at::full({32}, 2, at::kBFloat16)));
  });
}

TEST(Mesh, GroupsAreTheRowsAndColumnsOfTheMesh) {
  on_ranks(4, [](Rendezvous& rendezvous) {
    const Mesh mesh = make_mesh(rendezvous, /*shard_size=*/2);
    const int rank = rendezvous.options().rank;
    at::Tensor in_shard = at::full({1}, rank);
    mesh.shard->all_reduce(in_shard)->wait();
    EXPECT_EQ(in_shard.item<int>(), rank < 2 ? 1 : 5);
    at::Tensor across = at::full({1}, rank);
    mesh.replicate->all_reduce(across)->wait();
    EXPECT_EQ(across.item<int>(), rank % 2 == 0 ? 2 : 4);
  });
  EXPECT_THROW(make_fake_mesh(4, 3), ConfigError);
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
    EXPECT_EQ(broadcast_string(*group, group->rank() == 0 ? "hello" : ""), "hello");
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
