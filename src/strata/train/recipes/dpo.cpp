#include "strata/train/recipes/dpo.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/labels.h"
#include "strata/base/xxh3.h"
#include "strata/comm/agreement.h"
#include "strata/config/checks/preference_checks.h"
#include "strata/config/serialize.h"
#include "strata/data/collate.h"
#include "strata/data/sampler.h"
#include "strata/hf/base_fingerprint.h"
#include "strata/hf/formats/safetensors.h"
#include "strata/hf/hub/model.h"
#include "strata/hf/model_folder.h"
#include "strata/nn/preference_loss.h"
#include "strata/train/loop/batch_tensors.h"
#include "strata/train/setup/hub_place.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;
constexpr const char* kFingerprint = "fingerprint";
constexpr const char* kChecksum = "checksum";

// What the reference thinks of the rows.
struct Table {
  // [2 * rows]: log-probabilities of the preferred answer and of the other, of each row.
  std::vector<double> train, eval;
};

nn::PreferenceOptions options_of(const config::PreferenceConfig& config) {
  nn::PreferenceOptions options;
  options.beta = config.beta;
  if (!config.loss_type.empty()) options.losses = config.loss_type;
  options.weights = config::preference_loss_weights(config);
  options.label_smoothing = config.label_smoothing;
  options.divergence = config.f_divergence_type;
  options.divergence_alpha = config.f_alpha_divergence_coef;
  options.discopop_tau = config.discopop_tau;
  options.ld_alpha = config.ld_alpha;
  return options;
}

// [2 * rows], on every rank. Collective.
std::vector<double> ask(const data::TokenStore& rows, int64_t batch_size, Trainee& trainee,
                        const std::string& subject, const BeforeTraining& before) {
  const nn::PreferenceOptions options = options_of(before.config.preference);
  comm::Group& world = *trainee.store->mesh().world;
  const data::EvalSampler sampler(static_cast<int64_t>(rows.size()), batch_size, world.size(),
                                  /*drop_last=*/false);
  std::vector<double> found(2 * rows.size());
  for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
    const data::EvalBatch batch = sampler.batch(world.rank(), i);
    const data::MicroBatch collated = data::collate_rows(rows, batch.rows);
    nn::Preference pairs;
    pairs.options = options;
    nn::LossSums sums;
    nn::ForwardContext context;
    context.head.sums = &sums;
    context.head.preference = &pairs;
    trainee.executor->evaluate(to_tensors(collated, trainee.store->options().device), context);
    for (int64_t r = 0; r < batch.num_real; ++r) {
      const auto at_row = static_cast<size_t>(r);
      for (size_t answer = 0; answer < 2; ++answer) {
        found[2 * static_cast<size_t>(batch.rows[at_row]) + answer] =
            pairs.documents.at(2 * at_row + answer).weighted_log_prob(options);
      }
    }
    const auto done = static_cast<double>(i + 1) / static_cast<double>(sampler.batches_per_rank());
    before.progress("reference of the " + subject,
                    static_cast<int64_t>(done * static_cast<double>(rows.size())), done);
  }
  comm::sum_over_ranks(world, found);
  for (size_t i = 0; i < found.size(); ++i) {
    if (std::isfinite(found[i])) continue;
    throw FormatError(
        "reference: found a log-probability of {} for the {} answer of row {} of the {}, expected "
        "a number; look at the row and at the model",
        found[i], i % 2 == 0 ? "preferred" : "other", i / 2, subject);
  }
  return found;
}

void add_rows(const data::TokenStore& rows, Xxh3& hash) {
  const auto add = [&hash](std::span<const int32_t> part) { hash.update(std::as_bytes(part)); };
  for (size_t i = 0; i < rows.size(); ++i) {
    const data::ExampleView row = rows[i];
    add(row.ids);
    add(row.labels);
    add(row.lengths);
  }
}

// Of all that the table depends on: rows, weights, how they are computed.
std::string fingerprint_of(const config::RunConfig& config, const Trainee& trainee,
                           const Datasets& datasets) {
  Xxh3 rows;
  add_rows(datasets.train, rows);
  if (datasets.eval) add_rows(*datasets.eval, rows);
  config::RunConfig alike;
  alike.model = config.model;
  alike.quantization = config.quantization;
  alike.quantization.fp8_dequantize = false;
  alike.quantization.int_dequantize = false;
  alike.quantization.mxfp4_dequantize = false;  // decoding changes no value
  alike.lora = config.lora;
  alike.train.seed = config.train.seed;
  alike.preference.ld_alpha = config.preference.ld_alpha;
  const std::string& model = config.model.model_name_or_path;
  return fmt::format("{} {} {} {}", rows.text_64(), config::settings_hash(alike),
                     c10::toString(trainee.compute_type),
                     model.empty() ? "untrained"
                                   : hf::base_fingerprint(hf::ModelFolder(
                                         hf::locate_model(model, hub_place(config.model)))));
}

std::vector<double> read_table(const hf::SafetensorsFile& file, const char* name, size_t numel) {
  const hf::TensorInfo* found = file.find(name);
  if (found == nullptr || found->dtype != hf::DType::kF64 ||
      found->numel() != static_cast<int64_t>(numel)) {
    throw FormatError("{}: found no {} numbers of fp64 named {}, expected them",
                      file.path().string(), numel, name);
  }
  std::vector<double> values(numel);
  // A run without an evaluation has none: memcpy() takes no null pointer, not even for no bytes.
  std::ranges::copy(file.bytes(*found), std::as_writable_bytes(std::span(values)).begin());
  return values;
}

size_t num_answers(const std::optional<data::TokenStore>& rows) {
  return rows ? 2 * rows->size() : 0;
}

std::string checksum_of(const Table& table) {
  Xxh3 hash;
  for (const std::vector<double>* values : {&table.train, &table.eval}) {
    hash.update(std::as_bytes(std::span(*values)));
  }
  return hash.text_64();
}

// Nothing: there is none of this fingerprint. Errors: FormatError for a damaged file.
std::optional<Table> read_file_of(const fs::path& path, const std::string& fingerprint,
                                  const Datasets& datasets) {
  if (!fs::exists(path)) return std::nullopt;
  const hf::SafetensorsFile file(path);
  const auto known = file.metadata().find(kFingerprint);
  if (known == file.metadata().end() || known->second != fingerprint) return std::nullopt;
  Table table{.train = read_table(file, "train", 2 * datasets.train.size()),
              .eval = read_table(file, "eval", num_answers(datasets.eval))};
  const auto checksum = file.metadata().find(kChecksum);
  if (checksum != file.metadata().end() && checksum->second == checksum_of(table)) return table;
  throw FormatError("{}: found other numbers than were written, expected those of its checksum",
                    path.string());
}

// The same; what is damaged is made again, which is told.
std::optional<Table> find_table(const fs::path& path, const std::string& fingerprint,
                                const BeforeTraining& before) {
  try {
    return read_file_of(path, fingerprint, before.datasets);
  } catch (const FormatError& error) {
    before.notes.push_back(
        fmt::format("reference: {}; its log-probabilities are made again", error.what()));
    return std::nullopt;
  }
}

void write_file_of(const fs::path& path, const std::string& fingerprint, const Table& table) {
  const fs::path unfinished = path.string() + fmt::format(".tmp-{}", ::getpid());
  const auto rows_of = [](const std::vector<double>& values) {
    return std::vector<int64_t>{static_cast<int64_t>(values.size() / 2), 2};
  };
  hf::SafetensorsWriter writer(unfinished,
                               {{"train", hf::DType::kF64, rows_of(table.train)},
                                {"eval", hf::DType::kF64, rows_of(table.eval)}},
                               {{kFingerprint, fingerprint}, {kChecksum, checksum_of(table)}});
  writer.write("train", std::as_bytes(std::span(table.train)));
  writer.write("eval", std::as_bytes(std::span(table.eval)));
  writer.finish();
  fs::rename(unfinished, path);
}

// Collective.
Table ask_reference(const BeforeTraining& before) {
  const config::RunConfig& config = before.config;
  const Datasets& datasets = before.datasets;
  comm::Group& world = *before.trainee.store->mesh().world;
  Table table;
  const fs::path path = fs::path(config.train.output_dir) / kReferenceFile;
  std::string fingerprint, answer = "no";
  comm::all_or_nothing(world, "looking for the reference's log-probabilities", [&] {
    if (world.rank() != 0 || !before.is_kept) return;
    fingerprint = fingerprint_of(config, before.trainee, datasets);
    if (config.train.resume_from_checkpoint.empty()) return;
    if (auto found = find_table(path, fingerprint, before)) {
      table = std::move(*found);
      answer = "yes";
    }
  });
  if (comm::broadcast_string(world, answer) == "yes") {
    table.train.resize(2 * datasets.train.size());
    table.eval.resize(num_answers(datasets.eval));
    comm::broadcast_numbers(world, table.train);
    if (datasets.eval) comm::broadcast_numbers(world, table.eval);
    return table;
  }

  const auto start = std::chrono::steady_clock::now();
  const std::optional<int64_t> rows = config.preference.precompute_ref_batch_size;
  table.train = ask(datasets.train, rows.value_or(config.train.per_device_train_batch_size),
                    before.trainee, "training data", before);
  if (datasets.eval) {
    table.eval = ask(*datasets.eval, rows.value_or(config.train.per_device_eval_batch_size),
                     before.trainee, "evaluation data", before);
  }
  comm::all_or_nothing(world, "keeping the reference's log-probabilities", [&] {
    if (world.rank() == 0 && before.is_kept) write_file_of(path, fingerprint, table);
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  before.notes.push_back(
      fmt::format("reference: log-probabilities of {} by the model as it starts, in {:.1f} "
                  "s; no second model is kept",
                  counted((table.train.size() + table.eval.size()) / 2, "pair"), seconds.count()));
  return table;
}

nn::Preference pairs_of(const data::MicroBatch& batch, const nn::PreferenceOptions& options,
                        const std::vector<double>& reference) {
  nn::Preference pairs;
  pairs.options = options;
  for (const int64_t row : batch.rows) {
    for (size_t answer = 0; answer < 2; ++answer) {
      pairs.reference.push_back(reference.at(2 * static_cast<size_t>(row) + answer));
    }
  }
  for (size_t d = 0; d + 1 < batch.offsets.size(); ++d) {
    const auto first = batch.targets.begin() + batch.offsets[d];
    const auto last = batch.targets.begin() + batch.offsets[d + 1];
    pairs.answer_tokens.push_back(last - first - std::count(first, last, kNotTrained) +
                                  (batch.first_labels[d] != kNotTrained ? 1 : 0));
  }
  return pairs;
}

// Trained tokens of the preferred answers.
int64_t num_chosen_targets(const data::MicroBatch& batch) {
  int64_t count = 0;
  for (size_t d = 0; d + 1 < batch.offsets.size(); d += 2) {
    for (int64_t i = batch.offsets[d]; i < batch.offsets[d + 1]; ++i) {
      count += batch.targets[static_cast<size_t>(i)] != kNotTrained ? 1 : 0;
    }
  }
  return count;
}

class PairObjective final : public Objective {
 public:
  explicit PairObjective(nn::Preference pairs) : pairs_(std::move(pairs)) {}
  void ask(nn::ForwardContext& context) override { context.head.preference = &pairs_; }
  Figures figures(const nn::LossSums& sums) const override { return figures_of(sums, pairs_); }
  double num_losses(const nn::LossSums&) const override {
    return static_cast<double>(pairs_.documents.size()) / 2;
  }

 private:
  nn::Preference pairs_;
};

class Dpo final : public Recipe {
 public:
  Dpo(const config::PreferenceConfig& config, Table table)
      : options_(options_of(config)),
        disables_dropout_(config.disable_dropout),
        table_(std::move(table)) {}

  // Pairs, and the trained tokens of preferred answers.
  LossCounts count(const data::MicroBatch& batch) const override {
    return {.losses = static_cast<double>(batch.rows.size()),
            .others = static_cast<double>(num_chosen_targets(batch))};
  }
  bool disables_dropout() const override { return disables_dropout_; }
  std::unique_ptr<Objective> objective(const data::MicroBatch& batch, Split split,
                                       const LossCounts& counts) const override {
    nn::Preference pairs =
        pairs_of(batch, options_, split == Split::kTrain ? table_.train : table_.eval);
    pairs.pairs_per_chosen_token = counts.losses / std::max(counts.others, 1.0);
    return std::make_unique<PairObjective>(std::move(pairs));
  }

 private:
  nn::PreferenceOptions options_;
  bool disables_dropout_;
  Table table_;
};

}  // namespace

std::unique_ptr<Recipe> make_dpo(const BeforeTraining& before) {
  before.set_phase("asking the reference");
  return std::make_unique<Dpo>(before.config.preference, ask_reference(before));
}

}  // namespace strata::train
