#include "strata/train/datasets.h"

#include <algorithm>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/near_path.h"
#include "strata/config/recipes.h"
#include "strata/hf/hub/model.h"
#include "strata/models/registry.h"
#include "strata/train/data_warnings.h"
#include "strata/train/setup/hub_place.h"
#include "strata/train/setup/model_config.h"
#include "strata/train/setup/vocabulary.h"
#include "strata/train/split_loader.h"

namespace strata::train {
namespace {

// The key of config.json that says how many positions the model was made with. T5's n_positions
// means nothing.
const char* positions_key(const Json& model) {
  const Json type = model.value("model_type", Json());
  if (type == "gptj" || type == "codegen") return "n_positions";
  return type == "mpt" ? "max_seq_len" : "max_position_embeddings";
}

// Of a model's config.json; 0 where it names none. Scaled positions reach further than those that
// the model was first made with.
int64_t positions_of(const Json& model) {
  const auto number = [](const Json& object, const char* key, double fallback) {
    const auto it = object.find(key);
    return it != object.end() && it->is_number() ? it->get<double>() : fallback;
  };
  const double own = number(model, positions_key(model), 0);
  double positions = own;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = model.find(key);
    if (rope == model.end() || !rope->is_object()) continue;
    const double original = number(*rope, "original_max_position_embeddings", own);
    positions = std::max(positions, number(*rope, "factor", 1) * original);
  }
  return positions > 0 && positions < 1e15 ? static_cast<int64_t>(positions) : 0;
}

// Before any rank meets such a row alone.
void require_positions(const config::RunConfig& config, const ModelLimits& limits,
                       const data::TokenStore& set) {
  if (limits.table_key.empty()) return;
  const bool are_pairs = config::recipe_of(config).has_encoder;
  for (size_t i = 0; i < set.size(); ++i) {
    for (size_t d = 0; d < set.lengths(i).size(); ++d) {
      const int32_t length = set.lengths(i)[d];
      if (length <= limits.positions) continue;
      const char* setting = !are_pairs ? "max_length"
                            : d == 0   ? "max_source_length"
                                       : "max_target_length";
      throw ConfigError(
          "{}: found a {} of {} tokens, expected at most {}, for which the model has positions "
          "({}); lower {}",
          setting,
          !are_pairs ? "row"
          : d == 0   ? "source"
                     : "target",
          length, limits.positions, limits.table_key, setting);
    }
  }
}

// The result's config.json names the tokenizer's token of padding, and whoever loads it would count
// positions from that one.
void require_padding(const ModelLimits& limits, const text::Tokenizer& tokenizer) {
  const auto found = tokenizer.pad_id();
  if (!limits.padding_id || !found || *found == *limits.padding_id) return;
  throw ConfigError(
      "pad_token: found token {} in the tokenizer, expected {} (pad_token_id of config.json), from "
      "which the model's positions count; use the model's own token",
      *found, *limits.padding_id);
}

// Scripts that classify cut texts where the tokenizer says that its model ends; those that train
// on tokens do not.
int64_t row_length(const config::RunConfig& config, const text::Tokenizer& tokenizer) {
  const int64_t length = config.data.max_length.value_or(0);
  const std::optional<int64_t> most = tokenizer.model_max_length();
  if (!config::recipe_of(config).reads_labels || !most) return length;
  return std::min(length, *most);
}

// Empty unless rows are put in groups by them.
std::vector<int64_t> lengths_to_group(const config::RunConfig& config,
                                      const data::TokenStore& rows) {
  std::vector<int64_t> lengths;
  if (config.train.train_sampling_strategy != config::Sampling::kGroupByLength) return lengths;
  for (size_t i = 0; i < rows.size(); ++i) {
    // Of a pair the source, which is what Trainer takes for its length.
    lengths.push_back(config::recipe_of(config).has_encoder ? rows.lengths(i)[0]
                                                            : rows.num_tokens(i));
  }
  return lengths;
}

}  // namespace

std::vector<const data::TokenStore*> Datasets::evaluations() const {
  std::vector<const data::TokenStore*> sets;
  if (eval) sets.push_back(&*eval);
  if (second_eval) sets.push_back(&*second_eval);
  return sets;
}

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

ModelLimits read_model_limits(const config::ModelConfig& config) {
  const Json model = load_model_config(config, /*alone=*/true);
  ModelLimits limits;
  if (model.contains("vocab_size") && model["vocab_size"].is_number_integer()) {
    limits.vocab_size = model["vocab_size"].get<int64_t>();
  }
  limits.positions = positions_of(model);
  limits.positions_key = positions_key(model);
  if (const auto table = models::position_table(model)) {
    limits.positions = table->num_positions;
    limits.table_key = table->key;
    limits.padding_id = table->padding_id;
  }
  return limits;
}

Datasets load_datasets(const config::RunConfig& config, const ModelLimits& limits,
                       const LoadDatasetsOptions& wanted) {
  Datasets sets;
  Vocabulary vocabulary = load_vocabulary(config, limits.vocab_size);
  if (!vocabulary.note.empty()) sets.notes.push_back(vocabulary.note);
  sets.tokenizer = std::move(vocabulary.tokenizer);
  sets.max_length = row_length(config, *sets.tokenizer);
  require_padding(limits, *sets.tokenizer);
  sets.chat_template_source = vocabulary.chat_template.text;
  if (!sets.chat_template_source.empty()) {
    sets.chat_template.emplace(sets.chat_template_source, vocabulary.chat_template.name,
                               vocabulary.chat_template.tool_text);
  }
  const SplitLoader loader(config, vocabulary, wanted, sets);
  sets.train = loader.training_rows();
  if (config.train.eval_strategy != config::Interval::kNo || config.train.eval_on_start) {
    sets.eval = loader.evaluation_rows();
    sets.second_eval = loader.second_evaluation_rows();
  }
  require_positions(config, limits, sets.train);
  for (const data::TokenStore* set : sets.evaluations()) require_positions(config, limits, *set);
  // Before a model is loaded and an epoch trained.
  training_sampler(config, sets.train, wanted.data_parallel_size);
  for (const data::TokenStore* set : sets.evaluations()) {
    evaluation_sampler(config, *set, wanted.data_parallel_size);
  }
  sets.warnings = find_data_mistakes(config, limits, vocabulary, sets);
  return sets;
}

data::BatchSampler training_sampler(const config::RunConfig& config, const data::TokenStore& rows,
                                    int data_parallel_size) {
  const config::TrainConfig& train = config.train;
  data::LengthGroups groups{
      .lengths = lengths_to_group(config, rows),
      .rows = train.per_device_train_batch_size * train.gradient_accumulation_steps};
  return {static_cast<int64_t>(rows.size()),
          {.batch_size = train.per_device_train_batch_size,
           .world_size = data_parallel_size,
           .seed = train.data_seed.value_or(train.seed),
           .strategy = std::string(config::name_of(train.train_sampling_strategy)),
           .drop_last = train.dataloader_drop_last,
           .groups = std::move(groups)}};
}

data::EvalSampler evaluation_sampler(const config::RunConfig& config, const data::TokenStore& rows,
                                     int data_parallel_size) {
  const config::TrainConfig& train = config.train;
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t round = train.per_device_eval_batch_size * data_parallel_size;
  if (train.dataloader_drop_last && count < round) {
    throw ConfigError(
        "dataloader_drop_last: found {} to evaluate on, expected at least {} ({} x "
        "per_device_eval_batch_size {}); use smaller batches or turn it off",
        counted(count, "row"), round, counted(data_parallel_size, "rank"),
        train.per_device_eval_batch_size);
  }
  return {
      count,
      train.per_device_eval_batch_size,
      data_parallel_size,
      train.dataloader_drop_last,
      {.lengths = lengths_to_group(config, rows), .seed = train.data_seed.value_or(train.seed)}};
}

}  // namespace strata::train
