#include "strata/train/recipes/reference_table.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/xxh3.h"
#include "strata/comm/agreement.h"
#include "strata/config/serialize.h"
#include "strata/data/collate.h"
#include "strata/data/sampler.h"
#include "strata/hf/base_fingerprint.h"
#include "strata/hf/formats/safetensors.h"
#include "strata/hf/hub/model.h"
#include "strata/hf/model_folder.h"
#include "strata/train/loop/micro_pass.h"
#include "strata/train/loop/step_plan.h"
#include "strata/train/saving/preflight.h"
#include "strata/train/saving/results.h"
#include "strata/train/setup/hub_place.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;
constexpr const char* kFingerprint = "fingerprint";
constexpr const char* kChecksum = "checksum";

std::vector<int64_t> all_rows(const data::TokenStore& rows) {
  std::vector<int64_t> all(rows.size());
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

// Those of the training data that the steps from `first` on take, up to `last` and the run's end,
// ascending.
std::vector<int64_t> rows_of_steps(const data::BatchSampler& sampler, const StepPlan& plan,
                                   int world_size, int64_t first, int64_t last) {
  std::vector<int64_t> taken;
  for (int64_t step = first; step < std::min(last, plan.max_steps); ++step) {
    const StepPlan::Window window = plan.window(step);
    for (int rank = 0; rank < world_size; ++rank) {
      for (int64_t i = 0; i < window.count; ++i) {
        const auto batch = sampler.batch(window.epoch, rank, window.first + i);
        taken.insert(taken.end(), batch.begin(), batch.end());
      }
    }
  }
  std::ranges::sort(taken);
  const auto repeated = std::ranges::unique(taken);
  taken.erase(repeated.begin(), repeated.end());
  return taken;
}

// Those of the whole run: with max_steps a part of an epoch may do. Of a run that is resumed, those
// of the steps before, too.
std::vector<int64_t> rows_of_run(const config::RunConfig& config, const data::TokenStore& rows,
                                 int world_size) {
  const data::BatchSampler sampler = training_sampler(config, rows, world_size);
  const StepPlan plan = plan_steps(config.train, sampler.batches_per_rank());
  if (plan.max_steps >= plan.updates_per_epoch) return all_rows(rows);
  return rows_of_steps(sampler, plan, world_size, 0, plan.max_steps);
}

struct AskedRows {
  const data::TokenStore& rows;
  Split split;
  std::vector<int64_t> wanted;
  int64_t batch_size = 1;
  StopRequest asked_to_stop = {};
  bool may_be_no_numbers = false;  // else an error names the row
};

int64_t rows_at_once(const config::RunConfig& config, Split split) {
  const config::TrainConfig& train = config.train;
  return config.preference.precompute_ref_batch_size.value_or(
      split == Split::kTrain ? train.per_device_train_batch_size
                             : train.per_device_eval_batch_size);
}

// Fills the n numbers of each of the rows that are wanted, on every rank. False: broken off.
// Collective.
bool ask(const AskedRows& of, const ReferenceQuestion& question, const BeforeTraining& before,
         std::vector<double>& table) {
  const auto& [rows, split, wanted, batch_size, asked_to_stop, may_be_no_numbers] = of;
  if (wanted.empty()) return true;
  const std::string subject = split == Split::kTrain ? "training data" : "evaluation data";
  Trainee& trainee = before.trainee;
  comm::Group& world = *trainee.store->mesh().world;
  const auto count = static_cast<int64_t>(wanted.size());
  const data::EvalSampler sampler(count, batch_size, world.size(), /*drop_last=*/false);
  const AskModel ask_model = [&, split = of.split](const data::MicroBatch& batch,
                                                   nn::Preference& documents) {
    look_at(trainee, split, batch, documents);
  };
  const size_t width = question.numbers.size();
  std::vector<double> found(width * wanted.size());
  for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
    if (is_any_asked(asked_to_stop, world)) return false;
    const data::EvalBatch batch = sampler.batch(world.rank(), i);  // of places among the wanted
    std::vector<int64_t> own;
    for (const int64_t place : batch.rows) own.push_back(wanted[static_cast<size_t>(place)]);
    const std::vector<double> said = question.ask(data::collate_rows(rows, own), ask_model);
    for (size_t r = 0; r < static_cast<size_t>(batch.num_real); ++r) {
      for (size_t number = 0; number < width; ++number) {
        found[width * static_cast<size_t>(batch.rows[r]) + number] = said.at(width * r + number);
      }
    }
    const auto done = static_cast<double>(i + 1) / static_cast<double>(sampler.batches_per_rank());
    before.progress("reference of the " + subject,
                    static_cast<int64_t>(done * static_cast<double>(count)), done);
  }
  comm::sum_over_ranks(world, found);
  for (size_t place = 0; place < wanted.size(); ++place) {
    for (size_t number = 0; number < width; ++number) {
      const double value = found[width * place + number];
      if (!std::isfinite(value) && !may_be_no_numbers) {
        throw FormatError(
            "reference: found a log-probability of {} for {} of row {} of the {}, expected a "
            "number; look at the row and at the model",
            value, question.numbers[number], wanted[place], subject);
      }
      table[width * static_cast<size_t>(wanted[place]) + number] = value;
    }
  }
  return true;
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
                           const Datasets& datasets, std::optional<double> ld_alpha) {
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
  alike.preference.ld_alpha = ld_alpha;
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

size_t num_eval_rows(const Datasets& datasets) { return datasets.eval ? datasets.eval->size() : 0; }

std::string checksum_of(const ReferenceTable& table) {
  Xxh3 hash;
  for (const std::vector<double>* values : {&table.train, &table.eval}) {
    hash.update(std::as_bytes(std::span(*values)));
  }
  return hash.text_64();
}

// Nothing: there is none of this fingerprint. Errors: FormatError for a damaged file.
std::optional<ReferenceTable> read_file_of(const fs::path& path, const std::string& fingerprint,
                                           const Datasets& datasets, size_t width) {
  if (!fs::exists(path)) return std::nullopt;
  const hf::SafetensorsFile file(path);
  const auto known = file.metadata().find(kFingerprint);
  if (known == file.metadata().end() || known->second != fingerprint) return std::nullopt;
  ReferenceTable table{.train = read_table(file, "train", width * datasets.train.size()),
                       .eval = read_table(file, "eval", width * num_eval_rows(datasets))};
  const auto checksum = file.metadata().find(kChecksum);
  if (checksum != file.metadata().end() && checksum->second == checksum_of(table)) return table;
  throw FormatError("{}: found other numbers than were written, expected those of its checksum",
                    path.string());
}

// The same; what is damaged is made again, which is told.
std::optional<ReferenceTable> find_table(const fs::path& path, const std::string& fingerprint,
                                         const BeforeTraining& before, size_t width) {
  try {
    return read_file_of(path, fingerprint, before.datasets, width);
  } catch (const FormatError& error) {
    before.notes.push_back(
        fmt::format("reference: {}; its log-probabilities are computed again", error.what()));
    return std::nullopt;
  }
}

void write_file_of(const fs::path& path, const std::string& fingerprint,
                   const ReferenceTable& table, size_t width) {
  const fs::path unfinished = path.string() + fmt::format(".tmp-{}", ::getpid());
  const auto rows_of = [width](const std::vector<double>& values) {
    return std::vector<int64_t>{static_cast<int64_t>(values.size() / width),
                                static_cast<int64_t>(width)};
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

// What a resumed run has, on every rank; NaN for what is not known. On rank 0 the fingerprint of a
// table of this run. Collective.
ReferenceTable known_table(const fs::path& path, const BeforeTraining& before,
                           const ReferenceQuestion& question, std::string& fingerprint) {
  const Datasets& datasets = before.datasets;
  comm::Group& world = *before.trainee.store->mesh().world;
  const size_t width = question.numbers.size();
  ReferenceTable table;
  std::string answer = "no";
  comm::all_or_nothing(world, "looking for the reference's log-probabilities", [&] {
    if (world.rank() != 0 || !before.is_kept) return;
    fingerprint = fingerprint_of(before.config, before.trainee, datasets, question.ld_alpha);
    if (before.config.train.resume_from_checkpoint.empty()) return;
    if (auto found = find_table(path, fingerprint, before, width)) {
      table = std::move(*found);
      answer = "yes";
    }
  });
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  table.train.resize(width * datasets.train.size(), kUnknown);
  table.eval.resize(width * num_eval_rows(datasets), kUnknown);
  if (comm::broadcast_string(world, answer) == "yes") {
    comm::broadcast_numbers(world, table.train);
    if (datasets.eval) comm::broadcast_numbers(world, table.eval);
  }
  return table;
}

std::vector<int64_t> without_known(std::vector<int64_t> rows, const std::vector<double>& values,
                                   size_t width) {
  std::erase_if(
      rows, [&](int64_t row) { return std::isfinite(values[width * static_cast<size_t>(row)]); });
  return rows;
}

// Whether the run evaluates after `first` steps or more, before it has taken `last`, or at its end.
bool evaluates_within(const config::TrainConfig& config, const StepPlan& plan, int64_t first,
                      int64_t last) {
  if (first == 0 && config.eval_on_start) return true;
  for (int64_t done = std::max<int64_t>(first, 1); done < last && done <= plan.max_steps; ++done) {
    if (should_evaluate(plan, config, done)) return true;
  }
  return false;
}

// What the disk lacks in any case is told before hours go into the reference; what saves need
// beside the result is known later (saving/run_saver.h).
void require_room_for_result(const BeforeTraining& before) {
  comm::Group& world = *before.trainee.store->mesh().world;
  comm::all_or_nothing(world, "looking for room to save", [&] {
    if (world.rank() != 0) return;
    require_disk_space(
        before.config.train.output_dir,
        {.result_bytes = result_bytes(before.trainee, result_type(before.config, before.trainee))});
  });
}

}  // namespace

ReferenceTable ask_reference(const BeforeTraining& before, const ReferenceQuestion& question) {
  before.set_phase("evaluating the reference");
  const config::RunConfig& config = before.config;
  const Datasets& datasets = before.datasets;
  comm::Group& world = *before.trainee.store->mesh().world;
  const size_t width = question.numbers.size();
  const fs::path path = fs::path(config.train.output_dir) / kReferenceFile;
  std::string fingerprint;
  ReferenceTable table = known_table(path, before, question, fingerprint);

  const auto start = std::chrono::steady_clock::now();
  const AskedRows train{.rows = datasets.train,
                        .split = Split::kTrain,
                        .wanted = without_known(rows_of_run(config, datasets.train, world.size()),
                                                table.train, width),
                        .batch_size = rows_at_once(config, Split::kTrain)};
  if (before.is_kept && !train.wanted.empty()) require_room_for_result(before);
  ask(train, question, before, table.train);
  size_t num_asked = train.wanted.size();
  if (datasets.eval) {
    const AskedRows eval{.rows = *datasets.eval,
                         .split = Split::kEval,
                         .wanted = without_known(all_rows(*datasets.eval), table.eval, width),
                         .batch_size = rows_at_once(config, Split::kEval)};
    ask(eval, question, before, table.eval);
    num_asked += eval.wanted.size();
  }
  if (num_asked == 0) return table;
  comm::all_or_nothing(world, "keeping the reference's log-probabilities", [&] {
    if (world.rank() == 0 && before.is_kept) write_file_of(path, fingerprint, table, width);
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  before.notes.push_back(
      fmt::format("reference: log-probabilities of {} by the model as it starts, in {:.1f} "
                  "s; no second model is kept",
                  counted(num_asked, question.noun), seconds.count()));
  return table;
}

bool ask_reference_of_steps(const BeforeTraining& before, const ReferenceQuestion& question,
                            const AskedSteps& steps, ReferenceTable& table) {
  const config::RunConfig& config = before.config;
  const Datasets& datasets = before.datasets;
  const int world_size = before.trainee.store->mesh().world->size();
  const size_t width = question.numbers.size();
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  table.train.assign(width * datasets.train.size(), kUnknown);
  table.eval.assign(width * num_eval_rows(datasets), kUnknown);

  const data::BatchSampler sampler = training_sampler(config, datasets.train, world_size);
  const StepPlan plan = plan_steps(config.train, sampler.batches_per_rank());
  const AskedRows train{.rows = datasets.train,
                        .split = Split::kTrain,
                        .wanted = rows_of_steps(sampler, plan, world_size, steps.first, steps.last),
                        .batch_size = rows_at_once(config, Split::kTrain),
                        .asked_to_stop = steps.asked_to_stop,
                        .may_be_no_numbers = steps.first > 0};
  if (!ask(train, question, before, table.train)) return false;
  if (!datasets.eval || !evaluates_within(config.train, plan, steps.first, steps.last)) return true;
  return ask({.rows = *datasets.eval,
              .split = Split::kEval,
              .wanted = all_rows(*datasets.eval),
              .batch_size = rows_at_once(config, Split::kEval),
              .asked_to_stop = steps.asked_to_stop,
              .may_be_no_numbers = steps.first > 0},
             question, before, table.eval);
}

}  // namespace strata::train
