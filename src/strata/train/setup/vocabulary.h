// The tokens that a run's chat format brings along and the rows that the model gets for them.
// Owns: the tokenizer as the run uses it, the number of rows, filling new rows. Never: how a row
// starts (models/vocabulary.h), nor files of the result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/config/run_config.h"
#include "strata/hf/model_folder.h"
#include "strata/models/model.h"
#include "strata/shard/unit_store.h"
#include "strata/text/templates/builtin_templates.h"
#include "strata/text/tokenizer.h"

namespace strata::train {

struct Vocabulary {
  std::unique_ptr<text::Tokenizer> tokenizer;
  text::TemplateSource chat_template;
  int64_t num_old_rows = 0;  // of the base's files; 0: not known
  int64_t num_rows = 0;      // of this run's model
  // What the log says about added tokens; empty when there are none.
  std::string note;
};

// Tokenizer and template as the settings choose them. Rows grow to what the tokens need, rounded up
// to resize_to_multiple_of; they never become fewer. An adapter that is continued and holds rows of
// its own decides over the number.
Vocabulary load_vocabulary(const config::RunConfig& config, int64_t num_old_rows);

// What the model of a run must know of its vocabulary.
struct GrownVocabulary {
  int64_t num_old_rows = 0;
  int64_t num_rows = 0;
  // Tokens that TRL trains beside an adapter: those of another tokenizer.
  std::vector<int64_t> trained_tokens;
};

// The same of load_vocabulary(), without reading a tokenizer where the settings add no tokens.
// `alone`: nothing but config.json may be fetched from the Hub; without a tokenizer beside it no
// row is added.
GrownVocabulary count_rows(const config::RunConfig& config, int64_t num_old_rows, bool alone);

// Gives the rows that mark_new_rows() marked their first values: rank 0 draws them from the file's
// old rows and sends them to all. `folder`: null on ranks that read no files. Collective.
void fill_new_rows(const config::RunConfig& config, const Json& model_config,
                   const hf::ModelFolder* folder, const models::WeightSources& sources,
                   models::Model& model, shard::UnitStore& store);

}  // namespace strata::train
