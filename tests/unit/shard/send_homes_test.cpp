// Oracle: fill_homes() with the same source on every rank, to the bit; bytes computed from the
// layout, beside what the transport counted. Ranks are threads.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>

#include "../comm/on_ranks.h"
#include "strata/base/error.h"
#include "strata/comm/mesh.h"
#include "strata/models/registry.h"
#include "strata/shard/loading.h"

namespace strata::shard {
namespace {

Json tiny_llama() {
  return Json{{"model_type", "llama"},       {"vocab_size", 4001},
              {"hidden_size", 60},           {"intermediate_size", 84},
              {"num_hidden_layers", 2},      {"num_attention_heads", 3},
              {"num_key_value_heads", 1},    {"head_dim", 20},
              {"tie_word_embeddings", true}, {"max_position_embeddings", 64}};
}

bool is_known(const nn::Parameter& parameter, const std::string& unknown) {
  return unknown.empty() || parameter.name().find(unknown) == std::string::npos;
}

// Values that depend on name and place; the source does not know `unknown`.
Source numbers(const std::string& unknown) {
  return [unknown](const nn::Parameter& parameter, int64_t begin, const at::Tensor& out) {
    if (!is_known(parameter, unknown)) return false;
    const auto seed = static_cast<double>(std::hash<std::string>()(parameter.name()) % 1000);
    out.copy_(at::sin(at::arange(out.numel(), at::kDouble) + seed + static_cast<double>(begin)));
    return true;
  };
}

struct Row {
  int world, shards;
  bool shared_memory;
  const char* unknown;
};

class SendHomes : public testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(
    , SendHomes,
    testing::Values(Row{2, 2, true, ""}, Row{3, 3, true, ""}, Row{2, 2, false, ""},
                    Row{3, 3, false, ""}, Row{3, 1, true, ""}, Row{4, 2, true, ""},
                    Row{4, 2, false, ""}, Row{3, 3, true, "norm"}, Row{4, 2, true, "embed_tokens"},
                    Row{2, 1, false, "up_proj"}),
    [](const auto& info) {
      return fmt::format("{}_{}_{}_without_{}", info.param.world, info.param.shards,
                         info.param.shared_memory ? "shm" : "gloo", info.param.unknown);
    });

TEST_P(SendHomes, GivesEachRankItsPart) {
  const Row row = GetParam();
  std::atomic<int> opened{0};
  std::atomic<int64_t> received{0};
  const auto on_rank = [&](comm::Rendezvous& rendezvous) {
    comm::Mesh mesh = comm::make_mesh(rendezvous, {.shard_size = row.shards});
    const auto model = models::create_model(tiny_llama(), {.storage = at::kBFloat16});
    UnitStore sent(*model, mesh, {}), read(*model, mesh, {});
    int64_t parts = 0;  // bytes of this rank's homes of which rank 0 knows something
    for (int u = 0; u < read.num_units(); ++u) {
      const auto& segments = read.unit(u).segments;
      for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
        sent.home(u, s).value.fill_(7);  // stays where nobody knows better
        read.home(u, s).value.fill_(7);
        const auto& extents = segments[static_cast<size_t>(s)].extents;
        if (std::any_of(extents.begin(), extents.end(), [&](const Extent& extent) {
              return is_known(*extent.parameter, row.unknown);
            })) {
          parts += static_cast<int64_t>(read.home(u, s).value.nbytes());
        }
      }
    }
    fill_homes(read, numbers(row.unknown));
    send_homes(sent, HomeKind::kValues, [&] {
      ++opened;
      EXPECT_EQ(rendezvous.options().rank, 0);
      return numbers(row.unknown);
    });
    for (int u = 0; u < read.num_units(); ++u) {
      const auto& segments = read.unit(u).segments;
      for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
        for (const Piece& piece : pieces_of(segments[static_cast<size_t>(s)], mesh.shard->rank())) {
          const auto of = [&](UnitStore& store) {
            return store.home(u, s).value.narrow(0, piece.shard_begin, piece.length);
          };
          EXPECT_TRUE(at::equal(of(sent), of(read))) << piece.parameter->name();
        }
      }
    }
    // Rank 0 keeps its own part: the theory, and what was really copied.
    EXPECT_EQ(mesh.shard->traffic().sent_bytes,
              rendezvous.options().rank == 0 ? parts * (row.shards - 1) : 0);
    if (mesh.shard->received_bytes()) {
      const bool receives = mesh.shard->rank() > 0 && mesh.replicate->rank() == 0;
      EXPECT_EQ(mesh.shard->received_bytes(), receives ? parts : 0);
    }
    if (mesh.replicate->received_bytes()) {
      EXPECT_EQ(mesh.replicate->received_bytes(), mesh.replicate->rank() > 0 ? parts : 0);
    }
  };
  comm::on_ranks(row.world, row.shared_memory, on_rank);
  EXPECT_EQ(opened, 1);
}

TEST(SendingHomes, FailsOnAllRanksWhenRank0CannotRead) {
  std::atomic<int> told{0};
  comm::on_ranks(3, [&](comm::Rendezvous& rendezvous) {
    comm::Mesh mesh = comm::make_mesh(rendezvous, {.shard_size = 3});
    const auto model = models::create_model(tiny_llama(), {});
    UnitStore store(*model, mesh, {});
    int asked = 0;
    const auto source = [&](const nn::Parameter&, int64_t, const at::Tensor&) -> bool {
      if (++asked > 5) throw IoError(std::string("disk: gone"));
      return true;
    };
    try {
      send_homes(store, HomeKind::kValues, [&]() -> Source { return source; });
      ADD_FAILURE() << "went on";
    } catch (const IoError&) {
      EXPECT_EQ(mesh.world->rank(), 0);
      ++told;
    } catch (const CommError& e) {
      EXPECT_NE(std::string(e.what()).find("rank 0 failed to read"), std::string::npos);
      ++told;
    }
  });
  EXPECT_EQ(told, 3);
}

}  // namespace
}  // namespace strata::shard
