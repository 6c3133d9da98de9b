// Oracle: the layout's own definition - pieces of all ranks together are every element once - and
// values written whole and read back through gather.
#include "strata/shard/unit_store.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "strata/comm/mesh.h"
#include "strata/models/registry.h"
#include "strata/nn/linear.h"
#include "strata/shard/loading.h"

namespace strata::shard {
namespace {

Json tiny_llama(bool tied) {
  return Json{{"model_type", "llama"},       {"vocab_size", 37},
              {"hidden_size", 20},           {"intermediate_size", 28},
              {"num_hidden_layers", 3},      {"num_attention_heads", 2},
              {"num_key_value_heads", 1},    {"head_dim", 10},
              {"tie_word_embeddings", tied}, {"max_position_embeddings", 64}};
}

TEST(SlotPool, UnitsOfSeveralSizesTakeTurns) {
  SlotPool pool(at::kCPU);
  const auto visit = [&](int64_t numel) { return pool.acquire_turn(numel, at::kFloat); };
  // Embedding, layers with one fetched ahead, head, and back again.
  const std::vector<int64_t> sizes{310, 900, 900, 900, 311, 900, 900, 310};
  for (int round = 0; round < 3; ++round) {
    at::Tensor now = visit(sizes.front());
    for (size_t i = 1; i < sizes.size(); ++i) {
      const at::Tensor next = visit(sizes[i]);
      EXPECT_EQ(next.numel(), sizes[i]);
      EXPECT_FALSE(next.is_alias_of(now));
      pool.give_back(now);
      now = next;
    }
    pool.give_back(now);
    EXPECT_EQ(pool.allocated_bytes(), 2 * 900 * 4) << "round " << round;
  }
  EXPECT_EQ(pool.num_allocations(), 3);
  // Neither a few adapter weights nor what stays take a layer's place, nor another type.
  const at::Tensor small = visit(20), stays = pool.acquire(450, at::kFloat);
  const at::Tensor other = pool.acquire_turn(900, at::kBFloat16);
  EXPECT_EQ(pool.num_allocations(), 6);
  // A large embedding serves only what is nearly as large.
  SlotPool wide(at::kCPU);
  wide.give_back(wide.acquire_turn(5000, at::kFloat));
  wide.give_back(wide.acquire_turn(900, at::kFloat));
  EXPECT_EQ(wide.allocated_bytes(), 4 * 5900);
  wide.give_back(wide.acquire_turn(5001, at::kFloat));
  EXPECT_EQ(wide.allocated_bytes(), 4 * 5901);
  wide.clear();
  EXPECT_EQ(wide.allocated_bytes(), 0);
}

TEST(Partition, PiecesOfAllRanksAreEveryElementOnce) {
  for (int ranks : {1, 2, 3, 7, 128}) {
    auto model = models::create_model(tiny_llama(false), {});
    const Partition partition = partition_model(*model, ranks);
    std::map<const nn::Parameter*, int64_t> covered;
    for (const Unit& unit : partition.units) {
      for (const Segment& segment : unit.segments) {
        EXPECT_EQ(segment.numel, segment.shard_numel * ranks);
        for (int rank = 0; rank < ranks; ++rank) {
          for (const Piece& piece : pieces_of(segment, rank)) {
            EXPECT_EQ(piece.tensor_begin, covered[piece.parameter]) << piece.parameter->name();
            EXPECT_LE(piece.shard_begin + piece.length, segment.shard_numel);
            covered[piece.parameter] += piece.length;
          }
        }
      }
    }
    for (nn::Parameter* parameter : model->parameters()) {
      EXPECT_EQ(covered[parameter], parameter->numel()) << parameter->name();
    }
  }
}

TEST(Partition, FactorsOfOneInputLieOneBehindTheOther) {
  auto model = models::create_model(tiny_llama(false), {});
  for (nn::Parameter* parameter : model->parameters()) parameter->set_requires_grad(false);
  for (nn::Linear* layer : model->blocks()[1]->linears()) {
    layer->attach_low_rank(std::unique_ptr<nn::LowRankBranch>(new nn::LowRankBranch{
        .a = {layer->path() + ".lora_A.weight", {64, layer->in_features()}, at::kFloat},
        .b = {layer->path() + ".lora_B.weight", {layer->out_features(), 64}, at::kFloat}}));
  }
  const Partition partition = partition_model(*model, 2);
  const Segment& factors = partition.units[1].segments[1];
  ASSERT_EQ(factors.extents.size(), 14U);
  int64_t next = 0;
  for (size_t i = 0; i < 7; ++i) {
    const Extent& extent = factors.extents[i];
    EXPECT_THAT(extent.parameter->name(), ::testing::EndsWith("lora_A.weight"));
    EXPECT_EQ(extent.begin, next);
    next += extent.parameter->numel();
  }
}

TEST(Partition, TiedHeadNeedsTheEmbeddingsUnit) {
  auto model = models::create_model(tiny_llama(true), {});
  const Partition partition = partition_model(*model, 2);
  EXPECT_EQ(partition.block_units.front(), std::vector<int>{0});
  EXPECT_EQ(partition.block_units.back().front(), 0);
  EXPECT_EQ(partition.block_units.back().size(), 2U);
}

TEST(Partition, FrozenAndTrainedWeightsHaveSegmentsOfTheirOwn) {
  auto model = models::create_model(tiny_llama(false), {.storage = at::kBFloat16});
  for (nn::Parameter* parameter : model->parameters()) {
    const bool trains = parameter->name().find("q_proj") != std::string::npos;
    parameter->set_requires_grad(trains);
    if (trains) parameter->set_storage_type(at::kFloat);
  }
  const Partition partition = partition_model(*model, 2);
  const Unit& layer = partition.units[1];
  ASSERT_EQ(layer.segments.size(), 2U);
  EXPECT_FALSE(layer.segments[0].trainable);
  EXPECT_EQ(layer.segments[0].storage, at::kBFloat16);
  EXPECT_TRUE(layer.segments[1].trainable);
  EXPECT_EQ(layer.segments[1].storage, at::kFloat);
}

TEST(UnitStore, GatheredValuesAreWhatWasPlaced) {
  for (const at::ScalarType storage : {at::kFloat, at::kBFloat16}) {
    auto model = models::create_model(tiny_llama(false), {.storage = storage});
    for (nn::Parameter* parameter : model->parameters()) parameter->set_requires_grad(false);
    comm::Mesh mesh = comm::make_fake_mesh(1, 1);
    UnitStore store(*model, mesh, {});
    std::map<const nn::Parameter*, at::Tensor> expected;
    for (nn::Parameter* parameter : model->parameters()) {
      expected[parameter] = at::randn(parameter->shape());
      place_tensor(store, *parameter, expected[parameter]);
    }
    for (int u = 0; u < store.num_units(); ++u) {
      store.gather(u);
      store.wait_gather(u);
      for (const Segment& segment : store.unit(u).segments) {
        for (const Extent& extent : segment.extents) {
          const at::Tensor wanted = expected[extent.parameter].to(storage).to(at::kFloat);
          EXPECT_EQ(extent.parameter->value().scalar_type(), at::kFloat);
          EXPECT_TRUE(at::equal(extent.parameter->value(), wanted)) << extent.parameter->name();
        }
      }
      store.release(u);
      EXPECT_THROW(store.unit(u).segments[0].extents[0].parameter->value(), InternalError);
    }
  }
}

TEST(UnitStore, SteadyStateAllocatesNothing) {
  auto model = models::create_model(tiny_llama(false), {});
  comm::Mesh mesh = comm::make_fake_mesh(4, 4);
  UnitStore store(*model, mesh, {});
  const auto visit_all = [&] {
    for (int u = 0; u < store.num_units(); ++u) {
      store.gather(u);
      store.wait_gather(u);
      store.open_gradients(u, /*first_micro_step=*/true);
      store.reduce(u, /*last_micro_step=*/true);
      store.wait_reduce(u);
      store.release(u);
    }
  };
  visit_all();
  const int64_t allocations = store.pool().num_allocations();
  visit_all();
  visit_all();
  EXPECT_EQ(store.pool().num_allocations(), allocations);
}

TEST(UnitStore, AReaderThatFailsLeavesThePoolAsItWas) {
  auto model = models::create_model(tiny_llama(false), {});
  comm::Mesh mesh = comm::make_fake_mesh(2, 2);
  UnitStore store(*model, mesh, {});
  const auto read_all = [&](const std::function<void(const at::Tensor&)>& use) {
    for (int u = 0; u < store.num_units(); ++u) store.with_stored(u, 0, use);
  };
  read_all([](const at::Tensor&) {});
  const int64_t bytes = store.pool().allocated_bytes();
  const auto refuse = [](const at::Tensor&) { throw IoError("refused"); };
  for (int u = 0; u < store.num_units(); ++u) {
    EXPECT_THROW(store.with_stored(u, 0, refuse), IoError);
  }
  read_all([](const at::Tensor&) {});
  EXPECT_EQ(store.pool().allocated_bytes(), bytes);
}

TEST(UnitStore, GradientOfAnUnusedParameterIsZero) {
  auto model = models::create_model(tiny_llama(false), {});
  comm::Mesh mesh = comm::make_fake_mesh(2, 2);
  UnitStore store(*model, mesh, {});
  store.home(1, 0).gradient.fill_(7);
  store.open_gradients(1, /*first_micro_step=*/true);
  store.reduce(1, /*last_micro_step=*/true);
  store.wait_reduce(1);
  for (const Piece& piece : pieces_of(store.unit(1).segments[0], 0)) {
    const at::Tensor part = store.home(1, 0).gradient.narrow(0, piece.shard_begin, piece.length);
    EXPECT_EQ(part.abs().max().item<float>(), 0) << piece.parameter->name();
  }
}

}  // namespace
}  // namespace strata::shard
