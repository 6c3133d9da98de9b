// One rank's homes and optimizer of a tiny model, without its peers.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "strata/checkpoint/sharded.h"
#include "strata/comm/fake_group.h"
#include "strata/comm/single_group.h"
#include "strata/models/registry.h"
#include "strata/optim/adamw.h"
#include "strata/shard/loading.h"

namespace strata::checkpoint {

// Rank `rank` of a shard group of `size`, alone in this process, or of groups with others in it.
struct Rank {
  explicit Rank(int rank, int size) : Rank(group_of(rank, size), group_of(rank, size)) {}
  Rank(std::unique_ptr<comm::Group> world, std::unique_ptr<comm::Group> shard)
      : Rank(comm::Mesh{std::move(world), std::move(shard), comm::make_single_group()}) {}
  explicit Rank(comm::Mesh of_rank) : mesh(std::move(of_rank)) {
    const Json config{{"model_type", "llama"},    {"vocab_size", 37},
                      {"hidden_size", 20},        {"intermediate_size", 28},
                      {"num_hidden_layers", 2},   {"num_attention_heads", 2},
                      {"num_key_value_heads", 1}, {"head_dim", 10}};
    model = models::create_model(config, {});
    store = std::make_unique<shard::UnitStore>(*model, mesh, shard::StoreOptions{});
    optimizer = std::make_unique<optim::AdamW>(*store, optim::AdamWOptions{});
  }

  static std::unique_ptr<comm::Group> group_of(int rank, int size) {
    if (size == 1) return comm::make_single_group();
    return std::make_unique<comm::FakeGroup>(rank, size);
  }

  std::unique_ptr<models::Model> model;
  comm::Mesh mesh;
  std::unique_ptr<shard::UnitStore> store;
  std::unique_ptr<optim::AdamW> optimizer;
};

// FULL_STATE_DICT of its model.
inline WholeFiles whole_files(Rank& rank) {
  WholeFiles whole{.weights = "model.safetensors", .names = {}};
  for (const nn::Parameter* parameter : rank.model->parameters()) {
    whole.names[parameter->name()] = {parameter->name()};
  }
  return whole;
}

// Fills weights with the given values and moments with what follows from them.
inline void fill(Rank& rank, const std::map<std::string, at::Tensor>& whole) {
  for (nn::Parameter* parameter : rank.model->parameters()) {
    shard::place_tensor(*rank.store, *parameter, whole.at(parameter->name()));
  }
  for (int u = 0; u < rank.store->num_units(); ++u) {
    rank.optimizer->moments(u, 0).exp_avg.copy_(rank.store->home(u, 0).value * 2);
    rank.optimizer->moments(u, 0).exp_avg_sq.copy_(rank.store->home(u, 0).value.square());
  }
}

// The same with random weights, which it returns.
inline std::map<std::string, at::Tensor> fill(Rank& rank) {
  std::map<std::string, at::Tensor> whole;
  for (nn::Parameter* parameter : rank.model->parameters()) {
    whole[parameter->name()] = at::randn(parameter->shape());
  }
  fill(rank, whole);
  return whole;
}

// A checkpoint is read with plain calls, and in small blocks ahead of use, past the page cache and
// through it.
inline const PieceReaderOptions kReaders[] = {
    {},
    {.streamed_bytes = 0, .read_ahead = {.block_bytes = 4096, .num_blocks = 2}, .largest_gap = 0},
    {.streamed_bytes = 0, .read_ahead = {.block_bytes = 65536, .num_blocks = 3}},
    {.most_open = 1}};

// Pieces of the tiny model have some of these.
inline constexpr BlockSizes kTinyBlocks{.least_bytes = 256};

}  // namespace strata::checkpoint
