#include "strata/train/split_loader.h"

#include <algorithm>
#include <thread>
#include <unordered_set>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/config/checks/rated_checks.h"
#include "strata/config/glue_tasks.h"
#include "strata/config/recipes.h"
#include "strata/data/files/data_sets.h"
#include "strata/data/files/seen_files.h"
#include "strata/data/files/split_spec.h"
#include "strata/data/rows/pair_tokenizer.h"
#include "strata/data/store/private_folder.h"
#include "strata/hf/hub/cache.h"

namespace strata::train {
namespace {

data::DataRequest request_of(const config::RunConfig& config) {
  data::DataRequest request;
  request.names = data_name(config.data);
  for (const std::string& weight : config.data.dataset_weights) {
    request.weights.push_back(std::stod(weight));
  }
  request.seed = config.train.seed;
  request.hub_cache = config.model.cache_dir;
  request.load.skip_bad_rows = config.data.on_bad_row == config::OnBadRow::kSkip;
  request.load.configuration = config.data.dataset_config;
  request.load.reads_card_classes = config::recipe_of(config).reads_labels;
  for (const std::string& column : config.data.dataset_columns) {
    const size_t equals = column.find('=');
    request.load.columns.emplace_back(column.substr(0, equals), column.substr(equals + 1));
  }
  return request;
}

// What gives an evaluation split: one that is there and that nobody trains on, else a part of the
// rows.
std::string way_to_evaluate(const config::DataConfig& config, const data::DataRequest& request) {
  const std::string training = data::split_list(config.splits).front();
  std::vector<std::string> others;
  for (const std::string& name : data::list_splits(request)) {
    const bool is_trained =
        std::ranges::any_of(data::parse_split(training),
                            [&](const data::SplitPart& part) { return part.split == name; });
    if (!is_trained && data::has_splits(request, name)) others.push_back(name);
  }
  const auto held_out = std::ranges::find_if(
      others, [](const std::string& name) { return name.starts_with("val") || name == "dev"; });
  if (others.empty()) {
    const std::string whole = data::parse_split(training).front().split;
    return fmt::format("take a part of the rows: --splits \"{0}[:90%],{0}[90%:]\"", whole);
  }
  const std::string& name = held_out != others.end() ? *held_out : others.front();
  // Both names may not be given in two ways.
  const bool is_default = config.splits == config::DataConfig().splits;
  return "take one that is there: " + (is_default
                                           ? fmt::format("--dataset_test_split {}", name)
                                           : fmt::format("--splits \"{},{}\"", training, name));
}

// The first of `splits`, apart from their first, that the data set has.
std::string evaluation_split(const config::DataConfig& config, const data::DataRequest& request) {
  const std::vector<std::string> names = data::split_list(config.splits);
  for (size_t i = 1; i < names.size(); ++i) {
    if (data::has_splits(request, names[i])) return names[i];
  }
  throw ConfigError(
      "eval_strategy: found no evaluation split among \"{}\" in {} (it has: {}), "
      "expected one to evaluate on; {}, or set eval_strategy no",
      config.splits, request.names, fmt::join(data::list_splits(request), ", "),
      way_to_evaluate(config, request));
}

std::string training_split(const config::DataConfig& config) {
  const std::vector<std::string> names = data::split_list(config.splits);
  // A file given by itself is one split, whatever others are called.
  return names.empty() || !config.train_file.empty() ? "train" : names.front();
}

// With kept rows one rank of a machine prepares while the others wait for it: it takes their cores
// too.
int64_t all_cores(const config::DataConfig& config) {
  if (!config.dataset_cache) return at::get_num_threads();
  return std::max<int64_t>(1, std::thread::hardware_concurrency());
}

// Each file once, in the order of reading.
std::vector<std::string> file_names(const std::vector<std::vector<std::filesystem::path>>& lists) {
  std::vector<std::string> names;
  std::unordered_set<std::string> known;
  for (const std::vector<std::filesystem::path>& files : lists) {
    for (const std::filesystem::path& file : files) {
      if (known.insert(file.string()).second) names.push_back(file.string());
    }
  }
  return names;
}

data::PrepareOptions options_of(const config::RunConfig& config, int64_t vocab_size) {
  data::PrepareOptions options;
  options.dataset_text_field = config.data.dataset_text_field;
  options.packing = config.data.packing;
  options.packing_strategy = config.data.packing_strategy;
  options.completion_only_loss = config.data.completion_only_loss;
  options.assistant_only_loss = config.data.assistant_only_loss;
  options.shuffle = config.data.shuffle_dataset;
  options.seed = config.train.seed;
  options.long_rows = config.data.long_rows;
  options.skip_bad_rows = config.data.on_bad_row == config::OnBadRow::kSkip;
  options.add_special_tokens = config.data.add_special_tokens;
  options.append_concat_token = config.data.append_concat_token;
  options.threads = static_cast<int>(config.data.dataset_num_proc.value_or(all_cores(config.data)));
  options.vocab_size = vocab_size;
  if (config::recipe_of(config).reads_pairs) {
    options.preference =
        data::PreferenceOptions{.truncation_mode = config.preference.truncation_mode,
                                .are_rewarded = config::recipe_of(config).gives_rewards,
                                .learns_prompt = config::recipe_of(config).learns_prompts};
  }
  if (config::recipe_of(config).reads_ratings) {
    // Of the evaluation as well: so the reference stack pairs them.
    options.rated = data::RatedOptions{
        .mismatched_rows =
            config::estimates_divergence(config) ? config.train.per_device_train_batch_size : 0};
  }
  if (config::recipe_of(config).reads_labels) {
    const config::ClassifyConfig& classify = config.classify;
    options.labelled = data::LabelledOptions{.text_columns = classify.text_column_names,
                                             .pair_columns = classify.text_pair_column_names,
                                             .delimiter = classify.text_column_delimiter,
                                             .label_column = classify.label_column_name,
                                             .are_numbers = classify.do_regression,
                                             .hides_labels = !classify.task_name.empty()};
  }
  if (config::recipe_of(config).has_encoder) {
    options.pairs = data::PairOptions{.text_column = config.data.text_column,
                                      .summary_column = config.data.summary_column,
                                      .source_lang = config.data.source_lang,
                                      .target_lang = config.data.target_lang,
                                      .lang = config.data.lang,
                                      .source_prefix = config.data.source_prefix,
                                      .max_source_length = config.data.max_source_length,
                                      .max_target_length = config.data.max_target_length};
  }
  return options;
}

}  // namespace

int64_t rows_of_stream(const config::RunConfig& config, int data_parallel_size) {
  const config::TrainConfig& train = config.train;
  if (!config.data.dataset_streaming || config.data.shuffle_dataset || train.max_steps <= 0 ||
      !config.data.dataset_weights.empty()) {
    return 0;
  }
  return train.max_steps * train.gradient_accumulation_steps * train.per_device_train_batch_size *
         data_parallel_size;
}

SplitLoader::SplitLoader(const config::RunConfig& config, const Vocabulary& vocabulary,
                         const LoadDatasetsOptions& wanted, Datasets& sets)
    : config_(config),
      tool_template_(vocabulary.chat_template.tool_text),
      wanted_(wanted),
      sets_(sets),
      request_(request_of(config)),
      options_(options_of(config, vocabulary.num_rows)) {
  options_.max_length = sets.max_length;
  request_.download_progress = wanted.download_progress;
  settle_pair_columns();
}

void SplitLoader::settle_pair_columns() {
  if (!options_.pairs || !options_.pairs->source_lang.empty()) return;
  data::PairOptions& pairs = *options_.pairs;
  if (!pairs.text_column.empty() && !pairs.summary_column.empty()) return;
  data::DataRequest request = request_;
  request.weights.clear();  // and no slice: for both all rows would be counted
  request.split = data::parse_split(training_split(config_.data)).front().split;
  std::optional<data::RowFormat> format;
  std::vector<std::string> columns;
  data::read_data(request, [&](const data::RowBatch& batch) {
    for (const data::Row& row : batch.rows) {
      try {
        data::PairOptions wanted = pairs;
        data::name_published_columns(config_.data.dataset_name, row, wanted);
        format = data::detect_pair(row, wanted);
        for (const auto& [column, value] : row.fields.items()) columns.push_back(column);
        return false;
      } catch (const FormatError&) {
        if (!options_.skip_bad_rows) throw;
      }
    }
    return true;
  });
  if (!format) return;  // the rows have no good one, as preparing them tells
  pairs.text_column = format->text_columns.front();
  pairs.summary_column = format->pair_columns.front();
  if (columns.size() <= 2) return;  // there was nothing to choose
  sets_.notes.push_back(fmt::format(
      "data: \"{}\" is the source and \"{}\" the target, of the columns [{}]; --text_column and "
      "--summary_column name others",
      pairs.text_column, pairs.summary_column, fmt::join(columns, ", ")));
}

data::TokenStore SplitLoader::training_rows() const {
  data::PrepareOptions options = options_;
  options.max_rows = rows_of_stream(config_, wanted_.data_parallel_size);
  return load(request_, training_split(config_.data), std::move(options));
}

data::PrepareOptions SplitLoader::evaluation_options() const {
  data::PrepareOptions options = options_;
  options.packing = config_.data.eval_packing.value_or(config_.data.packing);
  options.separate_documents = config_.data.packing;
  return options;
}

data::TokenStore SplitLoader::evaluation_rows() const {
  data::DataRequest request = request_;
  const bool is_file = !config_.data.validation_file.empty();
  if (is_file) request.names = config_.data.validation_file;
  const std::string split = is_file ? "train" : evaluation_split(config_.data, request);
  return load(std::move(request), split, evaluation_options());
}

std::optional<data::TokenStore> SplitLoader::second_evaluation_rows() const {
  const config::GlueTask* task = config::find_glue_task(config_.classify.task_name);
  if (task == nullptr || task->second_split.empty()) return std::nullopt;
  const bool is_other = config_.data.splits != task->splits;
  if (is_other || !config_.data.validation_file.empty()) return std::nullopt;
  const std::string split(task->second_split);
  if (!data::has_splits(request_, split)) return std::nullopt;
  return load(request_, split, evaluation_options());
}

data::TokenStore SplitLoader::load(data::DataRequest request, const std::string& split,
                                   data::PrepareOptions options) const {
  request.split = split;
  options.subject = fmt::format("{} split of {}", split, request.names);
  data::SharedProgress progress(
      [&](int64_t rows, double part) {
        if (wanted_.progress) wanted_.progress(options.subject, rows, part);
      },
      wanted_.say);
  options.progress = [&progress](int64_t rows, double part) { progress.tell(rows, part); };
  const text::ChatTemplate* chat = sets_.chat_template ? &*sets_.chat_template : nullptr;
  const auto files = data::find_data_files(request);
  for (const std::string& ignored : data::describe_ignored(request)) {
    std::string line = "data: " + ignored;
    // Splits share a card.
    if (std::ranges::find(sets_.notes, line) == sets_.notes.end()) {
      sets_.notes.push_back(std::move(line));
    }
  }
  const data::SeenFiles seen(files);  // before their hashes are taken, by which rows are kept
  const auto make = [&](data::TokenWriter& writer) {
    data::DatasetStats stats =
        data::prepare_data(request, *sets_.tokenizer, chat, options,
                           [&writer](const data::ExampleView& row) { writer.add(row); });
    seen.require_unchanged();
    return stats;
  };
  if (!config_.data.dataset_cache) return data::TokenStore::scratch(make);
  return load_or_make({.request = request,
                       .options = options,
                       .tokenizer = *sets_.tokenizer,
                       .template_source = sets_.chat_template_source,
                       .tool_template = tool_template_,
                       .files = files},
                      make, progress);
}

data::TokenStore SplitLoader::load_or_make(const data::TokenSources& sources, const Make& make,
                                           data::SharedProgress& progress) const {
  const std::filesystem::path folder = hf::hf_home() / "strata" / "tokens";
  const std::string key = data::token_cache_key(sources, {.folder = folder});
  data::CachedTokens cached =
      data::load_or_make_tokens(folder, key, make, &progress, {}, data::shared_scratch_path());
  if (!cached.note.empty()) {
    sets_.notes.push_back("data: tokenized rows are not kept for the next run: " + cached.note);
  }
  cached.store.rename_files(file_names(sources.files));
  return std::move(cached.store);
}

}  // namespace strata::train
