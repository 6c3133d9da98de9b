// From rows to tokenized, labelled, truncated or packed examples: what TRL's SFTTrainer does to a
// data set before training, with the same result, in memory that does not grow with the set. Never
// makes batches, never reads files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/data/batch.h"
#include "strata/data/data_sets.h"
#include "strata/data/dataset_stats.h"
#include "strata/data/pair_tokenizer.h"
#include "strata/data/preference_tokenizer.h"
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
  // documents (preference_tokenizer.h), which are cut one by one to max_length (at least 2);
  // long_rows "drop" leaves rows with a longer one out. Never packed, never split.
  std::optional<PreferenceOptions> preference = {};
};

struct Dataset : DatasetStats {
  std::vector<Example> rows;
};

// Kinds of rows (all rows of a set are of one kind): a text column; `messages` (or `conversations`
// with from/value); `prompt` and `completion`, both strings or both message lists; `input_ids` with
// `labels` or with `completion_mask` / `assistant_masks`; `instruction` and `output`, with `input`
// where given (Alpaca). Optional columns: `tools`, `chat_template_kwargs`; `system` of messages and
// Alpaca, `history` of Alpaca. Others are counted. Preferences: preference_row.h. Of them rows are
// dropped in which truncation leaves an answer without a token to train on, which are those whose
// prompt alone fills max_length.
// `tmpl` may be null when the rows hold no messages. assistant_only_loss trains what the template's
// {% generation %} blocks wrote; for a template without them, see assistant_mask.h.
// Errors: ConfigError for options that contradict each other or the rows; FormatError with file and
// line for a row that cannot be used; FormatError if nothing to train on is left.
// Messages may say whether they are learnt (assistant_mask.h).
// Deviations from TRL: none in the result for rows that it reads, but for ShareGPT's role names
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
