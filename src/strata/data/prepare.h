// From rows to tokenized, labelled, truncated or packed examples: what TRL's SFTTrainer does to a
// data set before training, with the same result. Never batches, never reads files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strata/data/batch.h"
#include "strata/data/source.h"
#include "strata/text/chat_template.h"
#include "strata/text/tokenizer.h"

namespace strata::data {

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
  // Called from time to time with the rows done and all rows, by one thread at a time.
  std::function<void(int64_t, int64_t)> progress = {};
  std::string subject;  // what messages about the whole set call it ("train split of data/")
  // Ids at or above are an error (the model has no row for them in its embedding); 0: not checked.
  int64_t vocab_size = 0;
  // False: the documents of a bfd row count as one document. The reference does so when only
  // evaluation packs (eval_packing without packing), because its collator then pads.
  bool separate_documents = true;
};

struct DatasetStats {
  int64_t num_sources = 0;  // rows that were read
  int64_t num_dropped = 0;  // rows left out because truncation left no trained token
  int64_t num_long = 0;     // rows of more than max_length tokens (without packing that splits)
  BadRows bad_rows;         // rows that could not be used (skip_bad_rows)
  int64_t num_tokens = 0;
  // Trained next-token predictions: the sum over rows of what Trainer adds to num_items_in_batch.
  int64_t num_targets = 0;
  // Rows whose prompt does not tokenize to a prefix of prompt + completion: training sees another
  // prompt end than inference will. Worth a warning.
  int64_t num_split_prompts = 0;
};

struct Dataset : DatasetStats {
  std::vector<Example> rows;
};

// Kinds of rows (all rows of a set are of one kind): a text column; `messages` (or `conversations`
// with from/value); `prompt` and `completion`, both strings or both message lists; `input_ids` with
// `labels` or with `completion_mask` / `assistant_masks`; `instruction` and `output`, with `input`
// where given (Alpaca). Optional columns: `tools`, `chat_template_kwargs`.
// `tmpl` may be null when the rows hold no messages. assistant_only_loss trains what the template's
// {% generation %} blocks wrote; for a template without them, see assistant_mask.h.
// Errors: ConfigError for options that contradict each other or the rows; FormatError with file and
// line for a row that cannot be used; FormatError if nothing to train on is left.
// Deviations from TRL: none in the result for rows that it reads, but for ShareGPT's role names
// (see read_messages); it fails or silently mislabels where this reports (rows of two kinds, an
// assistant span whose border has no token).
Dataset prepare(const std::vector<Row>& rows, const text::Tokenizer& tokenizer,
                const text::ChatTemplate* tmpl, const PrepareOptions& options);

}  // namespace strata::data
