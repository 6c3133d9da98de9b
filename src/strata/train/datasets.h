// The tokenizer and the prepared data of a run. Owns: choice of files and options from the
// settings. Never: batches.
#pragma once

#include <memory>
#include <optional>

#include "strata/config/run_config.h"
#include "strata/data/prepare.h"
#include "strata/text/chat_template.h"
#include "strata/text/tokenizer.h"

namespace strata::train {

struct Datasets {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;
  std::string chat_template_source;
  data::Dataset train;
  std::optional<data::Dataset> eval;  // only when the settings ask for evaluation
};

// The folder whose tokenizer is used: tokenizer_name, the model, or the config's folder.
std::filesystem::path tokenizer_folder(const config::ModelConfig& config);

// `vocab_size`: rows of the embedding; ids beyond it are an error.
Datasets load_datasets(const config::RunConfig& config, int64_t vocab_size);

}  // namespace strata::train
