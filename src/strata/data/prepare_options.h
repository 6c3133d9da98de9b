// What the settings say of the way from rows to examples. Never looks at rows.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "strata/data/rows/labelled_row.h"
#include "strata/data/rows/pair_tokenizer.h"
#include "strata/data/rows/preference_tokenizer.h"

namespace strata::data {

// The names are KTOConfig's where it has one.
struct RatedOptions {
  // Rows among which answers are dealt to the prompts of others, for the estimate of a divergence
  // (per_device_train_batch_size); 0: they are not.
  int64_t mismatched_rows = 0;
};

// The names are SFTConfig's.
struct PrepareOptions {
  std::string dataset_text_field = "text";  // column of plain text rows
  int64_t max_length = 1024;                // tokens a row may have; 0: no limit
  bool packing = false;
  std::string packing_strategy = "bfd";  // bfd, bfd_split, wrapped
  // Rows of more than max_length tokens: truncate, drop, or split into rows of their own. Packing
  // by bfd_split and wrapped loses no token, so that there only "drop" changes anything.
  std::string long_rows = "truncate";
  bool skip_bad_rows = false;  // leave out rows that cannot be used, and count them
  // Whether the tokenizer adds its tokens; default: to text, not to conversations.
  std::optional<bool> add_special_tokens;
  bool append_concat_token = false;  // every row ends with the end-of-sequence token
  std::optional<bool>
      completion_only_loss;  // default: true if the first row is prompt + completion
  bool assistant_only_loss = false;
  bool shuffle = false;  // shuffle_dataset
  uint64_t seed = 42;    // of the shuffle
  int threads = 1;       // the result does not depend on it
  // Enough rows for whom this is made: what comes after them is left out. 0: all. Not with shuffle.
  int64_t max_rows = 0;
  // Called from time to time with the rows done and how much of all has been read, from 0 to 1.
  std::function<void(int64_t, double)> progress = {};
  std::string subject;  // what messages about the whole set call it ("train split of data/")
  // Ids at or above are an error (the model has no row for them in its embedding); 0: not checked.
  int64_t vocab_size = 0;
  // False: the documents of a bfd row count as one document. The reference does so when only
  // evaluation packs (eval_packing without packing), because its collator then pads.
  bool separate_documents = true;
  // Rows are pairs of source and target for an encoder-decoder model. Each becomes a row of these
  // two documents, neither packed nor cut again.
  std::optional<PairOptions> pairs = {};
  // Rows are preferences: a prompt, a better and a worse answer. Each becomes a row of two
  // documents (rows/preference_tokenizer.h), which are cut one by one to max_length (at least 2);
  // long_rows "drop" leaves rows with a longer one out. Never packed, never split.
  std::optional<PreferenceOptions> preference = {};
  // Rows are answers with a rating, or preferences, of which each becomes two of them
  // (rated_rows.h). Documents are cut to max_length (at least 2) at their ends; long_rows "drop"
  // leaves longer ones out. Never packed, never split.
  std::optional<RatedOptions> rated = {};
  // Rows are texts, or pairs, with labels (rows/labelled_row.h), of one document each, cut to
  // max_length with the tokens that the tokenizer adds at its ends. Never packed, never split.
  std::optional<LabelledOptions> labelled = {};
};

// Errors: ConfigError for options that contradict each other, whatever the rows are.
void check_prepare_options(const PrepareOptions& options);

}  // namespace strata::data
