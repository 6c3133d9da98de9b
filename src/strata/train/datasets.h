// The tokenizer and the prepared data of a run. Owns: choice of files and options from the
// settings. Never: batches.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/config/run_config.h"
#include "strata/data/sampler.h"
#include "strata/data/store/token_store.h"
#include "strata/hf/hub/download.h"
#include "strata/text/templates/chat_template.h"
#include "strata/text/tokenizer.h"

namespace strata::train {

struct Datasets {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;
  std::string chat_template_source;
  data::TokenStore train;
  int64_t max_length = 0;  // of rows: max_length, or less where the tokenizer says so; 0: none
  std::optional<data::TokenStore> eval;         // only when the settings ask for evaluation
  std::optional<data::TokenStore> second_eval;  // of a task that has one, beside the first
  std::vector<std::string> notes;               // what loading them did beside what was asked
  std::vector<std::string> warnings;            // what is probably a mistake

  // The evaluation sets that are there.
  std::vector<const data::TokenStore*> evaluations() const;
};

// What the training data are called: dataset_name, or train_file.
const std::string& data_name(const config::DataConfig& config);

// The folder whose tokenizer is used: tokenizer_name, the model, or the config's folder.
std::filesystem::path tokenizer_folder(const config::ModelConfig& config);

// Downloads the model and the tokenizer where they are names on the Hub that are not in the cache.
void fetch_model(const config::ModelConfig& config, const hf::DownloadProgress& progress);
// The same without weights.
void fetch_tokenizer(const config::ModelConfig& config, const hf::DownloadProgress& progress);

// What the model's config.json says of the rows it can take; 0 where it says nothing.
struct ModelLimits {
  int64_t vocab_size = 0;
  int64_t positions = 0;  // max_position_embeddings, or what rope_scaling makes of it
  std::string positions_key = "max_position_embeddings";
  // Where each position has a row of weights, beyond which nothing is computed: the key that says
  // how many.
  std::string table_key;
  // The token of padding from which positions count (models::PositionTable).
  std::optional<int64_t> padding_id;
};
ModelLimits read_model_limits(const config::ModelConfig& config);

struct LoadDatasetsOptions {
  // Told while rows are tokenized: what is prepared, rows done, the part of its files that has been
  // read, from 0 to 1.
  std::function<void(const std::string&, int64_t, double)> progress = {};
  hf::DownloadProgress download_progress = {};
  // Told, in a line for people, for whom this process waits; may be empty.
  std::function<void(const std::string&)> say = {};
  int data_parallel_size = 1;  // with dataset_streaming it tells how many rows max_steps will use
};

// Which rows make up which batch of training. ConfigError where dataloader_drop_last leaves no
// batch.
data::BatchSampler training_sampler(const config::RunConfig& config, const data::TokenStore& rows,
                                    int data_parallel_size);

// The same of an evaluation.
data::EvalSampler evaluation_sampler(const config::RunConfig& config, const data::TokenStore& rows,
                                     int data_parallel_size);

// Ids beyond what the rows of the base's embedding grow to (setup/vocabulary.h) are an error, rows
// beyond its positions a warning. With dataset_cache, processes that need the same rows at the same
// time let one of them prepare (token_cache.h).
Datasets load_datasets(const config::RunConfig& config, const ModelLimits& limits,
                       const LoadDatasetsOptions& options = {});

}  // namespace strata::train
