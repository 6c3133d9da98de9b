// A training loop written by hand over the public headers: every weight of a checkpoint is trained
// on the "text" column of a JSON lines file, sharded over all ranks (FULL_SHARD):
//   strata launch --num_processes 2 --no_python build/release/hand_written MODEL TEXT.jsonl OUTPUT
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "strata/strata.h"

namespace {

using namespace strata;
namespace fs = std::filesystem;

constexpr int64_t kSteps = 5, kRowsPerRank = 4;

std::vector<data::Example> tokenized_rows(const fs::path& file, const text::Tokenizer& tokenizer) {
  std::vector<data::Example> rows;
  for (const data::Row& row : data::load_split(file, "train").rows) {
    const std::vector<int32_t> ids = tokenizer.encode(row.fields.at("text").get<std::string>());
    rows.push_back({ids, /*labels=*/ids, {static_cast<int32_t>(ids.size())}});
  }
  return rows;
}

data::MicroBatch micro_batch(const std::vector<data::Example>& rows, int64_t first) {
  std::vector<data::ExampleView> examples;
  std::vector<int64_t> indices;
  for (int64_t i = first; i < first + kRowsPerRank; ++i) {
    indices.push_back(i % static_cast<int64_t>(rows.size()));
    examples.push_back(rows[static_cast<size_t>(indices.back())]);
  }
  return data::collate(examples, indices);
}

double sum_over(comm::Group& group, double value) {
  at::Tensor sum = at::full({1}, value, at::kDouble);
  group.all_reduce(sum)->wait();
  return sum.item<double>();
}

void fine_tune(const fs::path& model_path, const fs::path& text_path, const fs::path& output) {
  const launch::RankEnvironment ranks = launch::detect_rank_environment();
  comm::Rendezvous rendezvous({.rank = ranks.rank,
                               .world_size = ranks.world_size,
                               .address = ranks.master_addr,
                               .port = ranks.master_port});
  comm::Mesh mesh = comm::make_mesh(rendezvous, {.shard_size = ranks.world_size});

  // Blocks without memory first; the store gives this rank its shard of every parameter, read from
  // the mapped files; the schedule says when a unit is whole.
  const hf::ModelFolder folder(model_path);
  const auto model = models::create_model(folder.config(), {});
  const models::WeightSources sources = model->check_weights(folder);
  shard::UnitStore store(*model, mesh, {});
  shard::fill_homes(store, checkpoint::base_source(folder, sources));
  const shard::ChainShape chain = shard::shape_of(*model, store.partition());
  shard::Executor executor(*model, store, shard::build_schedules(chain, {}));
  optim::AdamW optimizer(store, {.weight_decay = 0.01});

  const auto tokenizer = text::Tokenizer::load(model_path);
  const std::vector<data::Example> rows = tokenized_rows(text_path, *tokenizer);
  for (int64_t step = 0; step < kSteps; ++step) {
    const data::MicroBatch micro =
        micro_batch(rows, (step * ranks.world_size + ranks.rank) * kRowsPerRank);
    const double targets = sum_over(*mesh.world, static_cast<double>(micro.num_targets));
    nn::LossSums sums;
    nn::ForwardContext context{.training = true};
    context.head.loss_scale = static_cast<float>(1 / targets);
    context.head.sums = &sums;
    executor.train(train::to_tensors(micro, at::kCPU), context, /*first_micro_step=*/true,
                   /*last_micro_step=*/true);
    const double norm = optim::global_gradient_norm(store);
    optimizer.step(/*learning_rate=*/5e-3, optim::clip_factor(norm, /*max_norm=*/1.0));
    executor.parameters_changed();
    const double loss = sum_over(*mesh.world, sums.loss) / targets;
    if (ranks.rank == 0) fmt::print("step {} loss {:.7f} gradient {:.6f}\n", step + 1, loss, norm);
  }

  if (ranks.rank == 0) {
    fs::create_directories(output);
    std::vector<fs::path> files = tokenizer->files();
    files.push_back(model_path / "config.json");
    for (const fs::path& file : files) fs::copy(file, output, fs::copy_options::overwrite_existing);
  }
  mesh.world->barrier();
  checkpoint::export_model(output, store, /*max_shard_size=*/5'000'000'000,
                           [](const nn::Parameter& parameter) { return parameter.name(); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return fmt::print(stderr, "usage: {} MODEL TEXT.jsonl OUTPUT\n", argv[0]), 2;
  try {
    return fine_tune(argv[1], argv[2], argv[3]), 0;
  } catch (const std::exception& error) {
    return fmt::print(stderr, "error: {}\n", error.what()), 1;
  }
}
