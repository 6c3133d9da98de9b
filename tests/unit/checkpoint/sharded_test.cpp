// Oracle: round trip - what was saved on one rank, read back whole on one rank and piece by piece
// on the ranks of another world size.
#include "strata/checkpoint/sharded.h"

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/manifest.h"
#include "strata/comm/fake_group.h"
#include "strata/comm/single_group.h"
#include "strata/models/registry.h"
#include "strata/optim/adamw.h"
#include "strata/shard/loading.h"

namespace strata::checkpoint {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;

namespace fs = std::filesystem;

// Rank `rank` of a shard group of `size`, alone in this process.
struct Rank {
  explicit Rank(int rank, int size) {
    const Json config{{"model_type", "llama"},    {"vocab_size", 37},
                      {"hidden_size", 20},        {"intermediate_size", 28},
                      {"num_hidden_layers", 2},   {"num_attention_heads", 2},
                      {"num_key_value_heads", 1}, {"head_dim", 10}};
    model = models::create_model(config, {});
    const auto group = [&]() -> std::unique_ptr<comm::Group> {
      if (size == 1) return comm::make_single_group();
      return std::make_unique<comm::FakeGroup>(rank, size);
    };
    mesh = comm::Mesh{group(), group(), comm::make_single_group()};
    store = std::make_unique<shard::UnitStore>(*model, mesh, shard::StoreOptions{});
    optimizer = std::make_unique<optim::AdamW>(*store, optim::AdamWOptions{});
  }

  std::unique_ptr<models::Model> model;
  comm::Mesh mesh;
  std::unique_ptr<shard::UnitStore> store;
  std::unique_ptr<optim::AdamW> optimizer;
};

// Fills weights and moments with values that name tensor and element.
std::map<std::string, at::Tensor> fill(Rank& rank) {
  std::map<std::string, at::Tensor> whole;
  for (nn::Parameter* parameter : rank.model->parameters()) {
    whole[parameter->name()] = at::randn(parameter->shape());
    shard::place_tensor(*rank.store, *parameter, whole[parameter->name()]);
  }
  for (int u = 0; u < rank.store->num_units(); ++u) {
    rank.optimizer->moments(u, 0).exp_avg.copy_(rank.store->home(u, 0).value * 2);
    rank.optimizer->moments(u, 0).exp_avg_sq.copy_(rank.store->home(u, 0).value.square());
  }
  return whole;
}

TEST(Sharded, AnyWorldSizeReadsWhatOneRankWrote) {
  TemporaryFolder folder;
  Rank writer(0, 1);
  const auto whole = fill(writer);
  const fs::path saved = save(folder.path(), 7, *writer.store, writer.optimizer.get(),
                              {{"trainer_state.json", "{}\n"}});
  EXPECT_EQ(saved.filename(), "checkpoint-7");
  EXPECT_EQ(read_file(folder.path() / "latest"), "checkpoint-7\n");
  EXPECT_EQ(read_file(saved / "trainer_state.json"), "{}\n");
  for (int size : {1, 2, 3, 5}) {
    for (int r = 0; r < size; ++r) {
      Rank reader(r, size);
      load(saved, *reader.store, reader.optimizer.get());
      EXPECT_EQ(reader.optimizer->num_steps(), 7);
      for (int u = 0; u < reader.store->num_units(); ++u) {
        for (const shard::Piece& piece : pieces_of(reader.store->unit(u).segments[0], r)) {
          const at::Tensor wanted = whole.at(piece.parameter->name())
                                        .reshape({-1})
                                        .narrow(0, piece.tensor_begin, piece.length);
          const auto part = [&](const at::Tensor& flat) {
            return flat.narrow(0, piece.shard_begin, piece.length);
          };
          EXPECT_TRUE(at::equal(part(reader.store->home(u, 0).value), wanted));
          EXPECT_TRUE(at::equal(part(reader.optimizer->moments(u, 0).exp_avg), wanted * 2));
          EXPECT_TRUE(at::equal(part(reader.optimizer->moments(u, 0).exp_avg_sq), wanted.square()));
        }
      }
    }
  }
}

TEST(Sharded, DamageIsNamed) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  fill(rank);
  const fs::path saved = save(folder.path(), 1, *rank.store, rank.optimizer.get(), {});
  const fs::path file = saved / "rank-00000.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 0x5a);
  write_file_atomically(file, bytes);
  const std::string message =
      message_of<FormatError>([&] { load(saved, *rank.store, rank.optimizer.get()); });
  EXPECT_NE(message.find("rank-00000.safetensors"), std::string::npos) << message;
  EXPECT_NE(message.find("checksum"), std::string::npos) << message;
}

TEST(Sharded, PiecesThatDoNotTileAreRefused) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  const fs::path saved = save(folder.path(), 1, *rank.store, nullptr, {});
  Json manifest = read_json_file(saved / "manifest.json");
  auto& piece = manifest["tensors"]["parameter/model.norm.weight"]["pieces"][0];
  piece["begin"] = 1;
  write_file_atomically(saved / "manifest.json", manifest.dump());
  const std::string message = message_of<FormatError>([&] { read_manifest(saved); });
  EXPECT_NE(message.find("model.norm.weight"), std::string::npos) << message;
}

TEST(Sharded, AStateWithoutOptimizerCannotBeResumedWithOne) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  const fs::path saved = save(folder.path(), 1, *rank.store, nullptr, {});
  load(saved, *rank.store, nullptr);
  EXPECT_THROW(load(saved, *rank.store, rank.optimizer.get()), FormatError);
}

TEST(Sharded, ListResolveAndRotateSeeWholeCheckpointsOnly) {
  TemporaryFolder folder;
  Rank rank(0, 1);
  EXPECT_THROW(resolve("true", folder.path()), ConfigError);
  for (int step : {2, 10, 9}) save(folder.path(), step, *rank.store, nullptr, {});
  fs::create_directories(folder.path() / "checkpoint-11");  // no manifest: not a checkpoint
  fs::create_directories(folder.path() / "checkpoint-x");
  const auto found = list(folder.path());
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found.back().filename(), "checkpoint-10");
  EXPECT_EQ(resolve("true", folder.path()).filename(), "checkpoint-10");
  EXPECT_EQ(resolve("some/where", folder.path()), fs::path("some/where"));
  rotate(folder.path(), 2);
  ASSERT_EQ(list(folder.path()).size(), 2U);
  EXPECT_FALSE(fs::exists(folder.path() / "checkpoint-2"));
  rotate(folder.path(), 1, folder.path() / "checkpoint-9");
  EXPECT_TRUE(fs::exists(folder.path() / "checkpoint-9"));
}

}  // namespace
}  // namespace strata::checkpoint
