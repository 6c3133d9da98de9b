// From rows to tokenized, labelled, truncated or packed examples: what TRL's SFTTrainer does to a
// data set before training, with the same result, in memory that does not grow with the set. Never
// makes batches, never reads files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "strata/data/batch.h"
#include "strata/data/dataset_stats.h"
#include "strata/data/files/data_sets.h"
#include "strata/data/prepare_options.h"
#include "strata/text/templates/chat_template.h"
#include "strata/text/tokenizer.h"

namespace strata::data {

struct Dataset : DatasetStats {
  std::vector<Example> rows;
};

// Kinds of rows (all rows of a set are of one kind): a text column; `messages` (or `conversations`
// with from/value); `prompt` and `completion`, both strings or both message lists; `input_ids` with
// `labels` or with `completion_mask` / `assistant_masks`; `instruction` and `output`, with `input`
// where given (Alpaca). Optional columns: `tools`, `chat_template_kwargs`; `system` of messages and
// Alpaca, `history` of Alpaca. Others are counted. Preferences: rows/preference_row.h; rated
// answers: rows/rated_row.h. Of them rows are dropped in which truncation leaves an answer without
// a token to train on, which are those whose prompt alone fills max_length. `tmpl` may be null when
// the rows hold no messages. assistant_only_loss trains what the template's
// {% generation %} blocks wrote; for a template without them, see rows/assistant_mask.h.
// Errors: ConfigError for options that contradict each other or the rows; FormatError with file and
// line for a row that cannot be used; FormatError if nothing to train on is left.
// Messages may say whether they are learnt (rows/assistant_mask.h).
// Deviations from TRL: none in the result for rows that it reads, except for ShareGPT's role names
// (see read_messages), a system column and messages' wishes, which it drops; it fails or silently
// mislabels where this reports (rows of two kinds, an assistant span whose border has no token).
// Memory: some batches of rows; with shuffle or an order of its own, rows wait in a scratch file
// and a few bytes a row stay.
class Preparation {
 public:
  using Keep = std::function<void(const ExampleView&)>;

  // Keeps references to all but `keep`, which takes the prepared rows in their order. `is_mixed`:
  // finish() will be given an order.
  Preparation(const text::Tokenizer& tokenizer, const text::ChatTemplate* tmpl,
              const PrepareOptions& options, Keep keep, bool is_mixed = false);
  ~Preparation();
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  // The next rows. False: max_rows are there. The error of the first bad row wins, whichever thread
  // met it; it may come with a later call.
  bool add(RowBatch batch);
  // Throws the error of a row that was added, if there is one still to be thrown.
  void settle();
  // `order`: numbers of added rows, each at most once; empty: as they came.
  DatasetStats finish(const std::vector<int64_t>& order = {});

 private:
  class Steps;
  std::unique_ptr<Steps> steps_;
};

// A set that fits into memory.
Dataset prepare(const std::vector<Row>& rows, const text::Tokenizer& tokenizer,
                const text::ChatTemplate* tmpl, const PrepareOptions& options);

// The rows that `request` names, prepared.
DatasetStats prepare_data(const DataRequest& request, const text::Tokenizer& tokenizer,
                          const text::ChatTemplate* tmpl, const PrepareOptions& options,
                          Preparation::Keep keep);

}  // namespace strata::data
