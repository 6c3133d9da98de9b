// Oracle: the ranks of each row and column, by hand. Ranks are threads of this process.
#include "strata/comm/mesh.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "on_ranks.h"
#include "strata/base/error.h"

namespace strata::comm {
namespace {

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

// Groups that hold different values stand for those that add in another order.
TEST(Mesh, ASumOverShardsIsThatOfTheFirstCopy) {
  on_ranks(4, [](Rendezvous& rendezvous) {
    const Mesh mesh = make_mesh(rendezvous, {.shard_size = 2});
    const at::Tensor values = at::full({3}, rendezvous.options().rank, at::kDouble);
    sum_alike(mesh, values);
    EXPECT_TRUE(values.eq(0 + 1).all().item<bool>()) << values;
    at::Tensor none = at::zeros({0});
    sum_alike(mesh, none);  // an optimizer without such state
    mesh.world->barrier();  // rank 0 keeps the place where the others meet
  });
  at::Tensor own = at::ones({2});
  sum_alike(make_fake_mesh(4, 1), own);
  EXPECT_TRUE(own.eq(1).all().item<bool>()) << "whole on every rank: nothing is added";
}

TEST(Mesh, TellsWhetherRanksShareMemoryWhereverTheGroupsAre) {
  for (const bool share : {false, true}) {
    for (const int shard_size : {1, 2}) {  // NO_SHARD: shard groups of one rank
      on_ranks(2, share, [&](Rendezvous& rendezvous) {
        const Mesh mesh = make_mesh(rendezvous, {.shard_size = shard_size});
        EXPECT_EQ(shares_memory(mesh), share) << shard_size;
        mesh.world->barrier();  // rank 0 keeps the place where the others meet
      });
    }
  }
}

}  // namespace
}  // namespace strata::comm
