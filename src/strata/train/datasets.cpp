#include "strata/train/datasets.h"

#include <algorithm>
#include <thread>
#include <unordered_set>

#include <ATen/Parallel.h>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/near_path.h"
#include "strata/config/recipes.h"
#include "strata/data/files/data_sets.h"
#include "strata/data/files/split_spec.h"
#include "strata/data/store/token_cache.h"
#include "strata/hf/hub/cache.h"
#include "strata/hf/hub/model.h"
#include "strata/models/registry.h"
#include "strata/text/templates/builtin_templates.h"
#include "strata/train/data_warnings.h"
#include "strata/train/setup/hub_place.h"
#include "strata/train/setup/model_config.h"
#include "strata/train/setup/vocabulary.h"

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

// Of `splits`, behind the first, the first that the data set has.
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

// Of a model's config.json; 0 where it names none. Scaled positions reach further than those that
// the model was first made with.
int64_t positions_of(const Json& model) {
  const auto number = [](const Json& object, const char* key, double fallback) {
    const auto it = object.find(key);
    return it != object.end() && it->is_number() ? it->get<double>() : fallback;
  };
  const double own = number(model, "max_position_embeddings", 0);
  double positions = own;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = model.find(key);
    if (rope == model.end() || !rope->is_object()) continue;
    const double original = number(*rope, "original_max_position_embeddings", own);
    positions = std::max(positions, number(*rope, "factor", 1) * original);
  }
  return positions > 0 && positions < 1e15 ? static_cast<int64_t>(positions) : 0;
}

// With kept rows one rank of a machine prepares while the others wait for it: it takes their cores
// too.
int64_t all_cores(const config::DataConfig& config) {
  if (!config.dataset_cache) return at::get_num_threads();
  return std::max<int64_t>(1, std::thread::hardware_concurrency());
}

// Each file once, in the order of reading.
std::vector<std::string> file_names(const data::DataRequest& request) {
  std::vector<std::string> names;
  std::unordered_set<std::string> known;
  for (const std::vector<std::filesystem::path>& files : data::find_data_files(request)) {
    for (const std::filesystem::path& file : files) {
      if (known.insert(file.string()).second) names.push_back(file.string());
    }
  }
  return names;
}

data::PrepareOptions options_of(const config::RunConfig& config, int64_t vocab_size) {
  data::PrepareOptions options;
  options.dataset_text_field = config.data.dataset_text_field;
  options.max_length = config.data.max_length.value_or(0);
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
                                .are_rewarded = config::recipe_of(config).gives_rewards};
  }
  if (config::recipe_of(config).has_encoder) {
    options.pairs = data::PairOptions{.text_column = config.data.text_column,
                                      .summary_column = config.data.summary_column,
                                      .source_lang = config.data.source_lang,
                                      .target_lang = config.data.target_lang,
                                      .source_prefix = config.data.source_prefix,
                                      .max_source_length = config.data.max_source_length,
                                      .max_target_length = config.data.max_target_length};
  }
  return options;
}

// Of a stream, the rows that the run will use in the files' order; 0: all.
int64_t rows_of_stream(const config::RunConfig& config, int data_parallel_size) {
  const config::TrainConfig& train = config.train;
  if (!config.data.dataset_streaming || config.data.shuffle_dataset || train.max_steps <= 0 ||
      !config.data.dataset_weights.empty()) {
    return 0;
  }
  return train.max_steps * train.gradient_accumulation_steps * train.per_device_train_batch_size *
         data_parallel_size;
}

}  // namespace

const std::string& data_name(const config::DataConfig& config) {
  return config.dataset_name.empty() ? config.train_file : config.dataset_name;
}

std::filesystem::path tokenizer_folder(const config::ModelConfig& config) {
  if (!config.tokenizer_name.empty()) {
    const auto folder =
        hf::locate_tokenizer(config.tokenizer_name, hub_place(config, config.tokenizer_name));
    if (std::filesystem::exists(folder)) return folder;
    throw IoError("tokenizer_name: found no folder {}, expected one with a tokenizer{}",
                  folder.string(), did_you_mean(folder));
  }
  if (!config.model_name_or_path.empty())
    return hf::locate_tokenizer(config.model_name_or_path, hub_place(config));
  const std::filesystem::path path = config.config_name;
  return std::filesystem::is_directory(path) ? path : path.parent_path();
}

void fetch_model(const config::ModelConfig& config, const hf::DownloadProgress& progress) {
  const std::string& model = config.model_name_or_path;
  if (!model.empty()) hf::locate_model(model, hub_place(config), progress);
  fetch_tokenizer(config, progress);
}

void fetch_tokenizer(const config::ModelConfig& config, const hf::DownloadProgress& progress) {
  for (const std::string& name : {config.model_name_or_path, config.tokenizer_name}) {
    if (!name.empty()) hf::locate_tokenizer(name, hub_place(config, name), progress);
  }
}

// Before any rank meets such a row alone.
static void require_positions(const ModelLimits& limits, const data::TokenStore& set) {
  if (limits.table_key.empty()) return;
  for (size_t i = 0; i < set.size(); ++i) {
    for (const int32_t length : set.lengths(i)) {
      if (length <= limits.positions) continue;
      throw ConfigError(
          "max_length: found a row of {} tokens, expected at most {}, for which the model has "
          "positions ({}); lower max_length",
          length, limits.positions, limits.table_key);
    }
  }
}

ModelLimits read_model_limits(const config::ModelConfig& config) {
  const Json model = load_model_config(config, /*alone=*/true);
  ModelLimits limits;
  if (model.contains("vocab_size") && model["vocab_size"].is_number_integer()) {
    limits.vocab_size = model["vocab_size"].get<int64_t>();
  }
  limits.positions = positions_of(model);
  if (const auto table = models::position_table(model)) {
    limits.positions = table->num_positions;
    limits.table_key = table->key;
  }
  return limits;
}

Datasets load_datasets(const config::RunConfig& config, const ModelLimits& limits,
                       const LoadDatasetsOptions& wanted) {
  Datasets sets;
  Vocabulary vocabulary = load_vocabulary(config, limits.vocab_size);
  sets.tokenizer = std::move(vocabulary.tokenizer);
  sets.chat_template_source = vocabulary.chat_template.text;
  if (!sets.chat_template_source.empty()) {
    sets.chat_template.emplace(sets.chat_template_source, vocabulary.chat_template.name,
                               vocabulary.chat_template.tool_text);
  }
  const text::ChatTemplate* chat = sets.chat_template ? &*sets.chat_template : nullptr;
  if (!vocabulary.note.empty()) sets.notes.push_back(vocabulary.note);

  data::PrepareOptions options = options_of(config, vocabulary.num_rows);
  data::DataRequest request = request_of(config);
  request.download_progress = wanted.download_progress;
  const auto load = [&](const std::string& split) {
    request.split = split;
    options.subject = fmt::format("{} split of {}", split, request.names);
    data::SharedProgress progress([&](int64_t rows, double part) {
      if (wanted.progress) wanted.progress(options.subject, rows, part);
    });
    options.progress = [&progress](int64_t rows, double part) { progress.tell(rows, part); };
    const auto make = [&](data::TokenWriter& writer) {
      return data::prepare_data(request, *sets.tokenizer, chat, options,
                                [&writer](const data::ExampleView& row) { writer.add(row); });
    };
    if (!config.data.dataset_cache) return data::TokenStore::scratch(make);
    const std::filesystem::path folder = hf::hf_home() / "strata" / "tokens";
    data::CachedTokens cached = data::load_or_make_tokens(
        folder,
        data::token_cache_key({.request = request,
                               .options = options,
                               .tokenizer = *sets.tokenizer,
                               .template_source = sets.chat_template_source,
                               .tool_template = vocabulary.chat_template.tool_text},
                              {.folder = folder}),
        make, &progress);
    if (!cached.note.empty()) {
      sets.notes.push_back("data: tokenized rows are not kept for the next run: " + cached.note);
    }
    cached.store.rename_files(file_names(request));
    return std::move(cached.store);
  };
  options.max_rows = rows_of_stream(config, wanted.data_parallel_size);
  sets.train = load(training_split(config.data));
  options.max_rows = 0;
  if (config.train.eval_strategy != config::Interval::kNo || config.train.eval_on_start) {
    options.packing = config.data.eval_packing.value_or(config.data.packing);
    options.separate_documents = config.data.packing;
    const bool is_file = !config.data.validation_file.empty();
    if (is_file) request.names = config.data.validation_file;
    sets.eval = load(is_file ? "train" : evaluation_split(config.data, request));
  }
  require_positions(limits, sets.train);
  if (sets.eval) require_positions(limits, *sets.eval);
  // Before a model is loaded and an epoch trained.
  if (sets.eval) evaluation_sampler(config.train, *sets.eval, wanted.data_parallel_size);
  sets.warnings = find_data_mistakes(config, limits, vocabulary, sets);
  return sets;
}

data::BatchSampler training_sampler(const config::RunConfig& config, const data::TokenStore& rows,
                                    int data_parallel_size) {
  const config::TrainConfig& train = config.train;
  data::LengthGroups groups{
      .lengths = {}, .rows = train.per_device_train_batch_size * train.gradient_accumulation_steps};
  if (train.train_sampling_strategy == config::Sampling::kGroupByLength) {
    for (size_t i = 0; i < rows.size(); ++i) {
      // Of a pair the source, which is what Trainer takes for its length.
      groups.lengths.push_back(config::recipe_of(config).has_encoder ? rows.lengths(i)[0]
                                                                     : rows.num_tokens(i));
    }
  }
  return {static_cast<int64_t>(rows.size()),
          train.per_device_train_batch_size,
          data_parallel_size,
          train.data_seed.value_or(train.seed),
          std::string(config::name_of(train.train_sampling_strategy)),
          train.dataloader_drop_last,
          std::move(groups)};
}

data::EvalSampler evaluation_sampler(const config::TrainConfig& config,
                                     const data::TokenStore& rows, int data_parallel_size) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t round = config.per_device_eval_batch_size * data_parallel_size;
  if (config.dataloader_drop_last && count < round) {
    throw ConfigError(
        "dataloader_drop_last: found {} to evaluate on, expected at least {} ({} x "
        "per_device_eval_batch_size {}); use smaller batches or turn it off",
        counted(count, "row"), round, counted(data_parallel_size, "rank"),
        config.per_device_eval_batch_size);
  }
  return {count, config.per_device_eval_batch_size, data_parallel_size,
          config.dataloader_drop_last};
}

}  // namespace strata::train
