#include "strata/train/preference.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "strata/base/error.h"
#include "strata/comm/agreement.h"
#include "strata/config/preference_checks.h"
#include "strata/config/serialize.h"
#include "strata/data/collate.h"
#include "strata/data/sampler.h"
#include "strata/hf/base_fingerprint.h"
#include "strata/hf/hub_model.h"
#include "strata/hf/model_folder.h"
#include "strata/hf/safetensors.h"
#include "strata/train/batch_tensors.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;
constexpr const char* kFingerprint = "fingerprint";

nn::PreferenceOptions options_of(const config::PreferenceConfig& config) {
  nn::PreferenceOptions options;
  options.beta = config.beta;
  if (!config.loss_type.empty()) options.losses = config.loss_type;
  options.weights = config::preference_loss_weights(config);
  options.label_smoothing = config.label_smoothing;
  options.divergence = config.f_divergence_type;
  options.divergence_alpha = config.f_alpha_divergence_coef;
  options.discopop_tau = config.discopop_tau;
  return options;
}

// [2 * rows], on every rank. Collective.
std::vector<double> ask(const data::TokenStore& rows, int64_t batch_size, Trainee& trainee,
                        const std::string& subject, const ReferenceCalls& calls) {
  comm::Group& world = *trainee.store->mesh().world;
  const data::EvalSampler sampler(static_cast<int64_t>(rows.size()), batch_size, world.size(),
                                  /*drop_last=*/false);
  std::vector<double> found(2 * rows.size());
  for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
    const data::EvalBatch batch = sampler.batch(world.rank(), i);
    std::vector<data::ExampleView> examples;
    for (const int64_t row : batch.rows) examples.push_back(rows[static_cast<size_t>(row)]);
    const data::MicroBatch collated = data::collate(examples, batch.rows);
    nn::Preference pairs;
    nn::LossSums sums;
    nn::ForwardContext context;
    context.sums = &sums;
    context.preference = &pairs;
    trainee.executor->evaluate(to_tensors(collated, trainee.store->options().device), context);
    for (int64_t r = 0; r < batch.num_real; ++r) {
      const auto at_row = static_cast<size_t>(r);
      for (size_t answer = 0; answer < 2; ++answer) {
        found[2 * static_cast<size_t>(batch.rows[at_row]) + answer] =
            pairs.documents.at(2 * at_row + answer).log_prob;
      }
    }
    if (calls.progress) {
      const auto done =
          static_cast<double>(i + 1) / static_cast<double>(sampler.batches_per_rank());
      calls.progress(subject, static_cast<int64_t>(done * static_cast<double>(rows.size())), done);
    }
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

void add_rows(const data::TokenStore& rows, XXH3_state_t& state) {
  const auto add = [&state](std::span<const int32_t> part) {
    XXH3_64bits_update(&state, part.data(), part.size_bytes());
  };
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
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  add_rows(datasets.train, state);
  if (datasets.eval) add_rows(*datasets.eval, state);
  config::RunConfig alike;
  alike.model = config.model;
  alike.quantization = config.quantization;
  alike.lora = config.lora;
  alike.train.seed = config.train.seed;
  const std::string& model = config.model.model_name_or_path;
  return fmt::format(
      "{:016x} {} {} {}", XXH3_64bits_digest(&state), config::settings_hash(alike),
      c10::toString(trainee.compute_type),
      model.empty()
          ? "untrained"
          : hf::base_fingerprint(hf::ModelFolder(hf::locate_model(model, config.model.cache_dir))));
}

std::vector<double> read_table(const hf::SafetensorsFile& file, const char* name, size_t numel) {
  const hf::TensorInfo* found = file.find(name);
  if (found == nullptr || found->dtype != hf::DType::kF64 ||
      found->numel() != static_cast<int64_t>(numel)) {
    throw FormatError("{}: found no {} numbers of fp64 named {}, expected them; remove the file",
                      file.path().string(), numel, name);
  }
  std::vector<double> values(numel);
  std::memcpy(values.data(), file.bytes(*found).data(), numel * sizeof(double));
  return values;
}

size_t num_answers(const std::optional<data::TokenStore>& rows) {
  return rows ? 2 * rows->size() : 0;
}

// False: there is none of this fingerprint.
bool read_file_of(const fs::path& path, const std::string& fingerprint, const Datasets& datasets,
                  Preferences& preferences) {
  if (!fs::exists(path)) return false;
  const hf::SafetensorsFile file(path);
  const auto known = file.metadata().find(kFingerprint);
  if (known == file.metadata().end() || known->second != fingerprint) return false;
  preferences.train = read_table(file, "train", 2 * datasets.train.size());
  preferences.eval = read_table(file, "eval", num_answers(datasets.eval));
  return true;
}

void write_file_of(const fs::path& path, const std::string& fingerprint,
                   const Preferences& preferences) {
  const fs::path unfinished = path.string() + fmt::format(".tmp-{}", ::getpid());
  const auto rows_of = [](const std::vector<double>& values) {
    return std::vector<int64_t>{static_cast<int64_t>(values.size() / 2), 2};
  };
  hf::SafetensorsWriter writer(unfinished,
                               {{"train", hf::DType::kF64, rows_of(preferences.train)},
                                {"eval", hf::DType::kF64, rows_of(preferences.eval)}},
                               {{kFingerprint, fingerprint}});
  writer.write("train", std::as_bytes(std::span(preferences.train)));
  writer.write("eval", std::as_bytes(std::span(preferences.eval)));
  writer.finish();
  fs::rename(unfinished, path);
}

}  // namespace

Preferences ask_reference(const config::RunConfig& config, Trainee& trainee,
                          const Datasets& datasets, const ReferenceCalls& calls) {
  comm::Group& world = *trainee.store->mesh().world;
  Preferences preferences;
  preferences.options = options_of(config.preference);
  preferences.disable_dropout = config.preference.disable_dropout;
  const fs::path path = fs::path(config.train.output_dir) / kReferenceFile;
  std::string fingerprint, answer = "no";
  comm::all_or_nothing(world, "looking for the reference's log-probabilities", [&] {
    if (world.rank() != 0 || !calls.is_kept) return;
    fingerprint = fingerprint_of(config, trainee, datasets);
    if (config.train.resume_from_checkpoint.empty()) return;
    if (read_file_of(path, fingerprint, datasets, preferences)) answer = "yes";
  });
  if (comm::broadcast_string(world, answer) == "yes") {
    preferences.train.resize(2 * datasets.train.size());
    preferences.eval.resize(num_answers(datasets.eval));
    comm::broadcast_numbers(world, preferences.train);
    if (datasets.eval) comm::broadcast_numbers(world, preferences.eval);
    return preferences;
  }

  const auto start = std::chrono::steady_clock::now();
  const std::optional<int64_t> rows = config.preference.precompute_ref_batch_size;
  preferences.train = ask(datasets.train, rows.value_or(config.train.per_device_train_batch_size),
                          trainee, "training data", calls);
  if (datasets.eval) {
    preferences.eval = ask(*datasets.eval, rows.value_or(config.train.per_device_eval_batch_size),
                           trainee, "evaluation data", calls);
  }
  comm::all_or_nothing(world, "keeping the reference's log-probabilities", [&] {
    if (world.rank() == 0 && calls.is_kept) write_file_of(path, fingerprint, preferences);
  });
  if (calls.notes != nullptr) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    calls.notes->push_back(fmt::format(
        "reference: log-probabilities of {} pairs by the model as it starts, in {:.1f} s; no "
        "second model is kept",
        (preferences.train.size() + preferences.eval.size()) / 2, seconds.count()));
  }
  return preferences;
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
    pairs.answer_tokens.push_back(last - first - std::count(first, last, -100) +
                                  (batch.first_labels[d] != -100 ? 1 : 0));
  }
  return pairs;
}

int64_t num_chosen_targets(const data::MicroBatch& batch) {
  int64_t count = 0;
  for (size_t d = 0; d + 1 < batch.offsets.size(); d += 2) {
    for (int64_t i = batch.offsets[d]; i < batch.offsets[d + 1]; ++i) {
      count += batch.targets[static_cast<size_t>(i)] != -100 ? 1 : 0;
    }
  }
  return count;
}

}  // namespace strata::train
