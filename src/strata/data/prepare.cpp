#include "strata/data/prepare.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "strata/base/error.h"
#include "strata/data/collate.h"
#include "strata/data/pack.h"
#include "strata/data/random.h"
#include "strata/data/row_tokenizer.h"

namespace strata::data {
namespace {

constexpr int32_t kNotTrained = -100;

void check_options(const PrepareOptions& options) {
  if (options.max_length < 0 || options.max_length > kMaxRowTokens) {
    throw ConfigError("max_length: found {}, expected 0 (no limit) to {}", options.max_length,
                      kMaxRowTokens);
  }
  if (options.packing && options.max_length == 0) {
    throw ConfigError("max_length: found 0 (no limit), expected a length to pack to; set it");
  }
  if (options.threads < 1) {
    throw ConfigError("threads: found {}, expected at least 1", options.threads);
  }
}

// Tokenizes rows on several threads. Each row's result has its own place and the error of the first
// bad row wins, so that nothing depends on the number of threads.
class ParallelTokenizer {
 public:
  ParallelTokenizer(const RowTokenizer& tokenizer, const std::vector<Row>& rows, int64_t keep)
      : tokenizer_(tokenizer), rows_(rows), keep_(keep), examples_(rows.size()) {}

  std::vector<Example> run(int num_threads) {
    const size_t useful = (rows_.size() + kChunk - 1) / kChunk;
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < std::min<size_t>(useful, static_cast<size_t>(num_threads)); ++i) {
      threads.emplace_back([this] { work(); });
    }
    work();
    threads.clear();
    if (error_) std::rethrow_exception(error_);
    return std::move(examples_);
  }

  int64_t num_split_prompts() const { return num_split_prompts_; }

 private:
  static constexpr size_t kChunk = 16;

  void work() {
    for (size_t begin = next_.fetch_add(kChunk); begin < rows_.size();
         begin = next_.fetch_add(kChunk)) {
      const size_t end = std::min(begin + kChunk, rows_.size());
      for (size_t i = begin; i < end && i < first_bad_; ++i) tokenize(i);
    }
  }

  void tokenize(size_t i) {
    try {
      TokenizedRow row = tokenize_row(rows_[i]);
      num_split_prompts_ += row.prompt_is_split;
      examples_[i] = std::move(row.example);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (i < first_bad_) {
        first_bad_ = i;
        error_ = std::current_exception();
      }
    }
  }

  TokenizedRow tokenize_row(const Row& source) const {
    TokenizedRow row;
    try {
      row = tokenizer_.tokenize(source);
    } catch (const FormatError& error) {
      // The chat template does not know which row it was given.
      const std::string where = source.where();
      if (std::string_view(error.what()).starts_with(where)) throw;
      throw FormatError("{}: {}", where, error.what());
    }
    Example& example = row.example;
    const auto size = static_cast<int64_t>(example.ids.size());
    if (size > keep_) {
      for (auto* column : {&example.ids, &example.labels}) {
        column->resize(static_cast<size_t>(keep_));
        column->shrink_to_fit();
      }
      example.lengths.assign(1, static_cast<int32_t>(keep_));
    }
    if (static_cast<int64_t>(example.ids.size()) > kMaxRowTokens) {
      throw FormatError("{}: found {} tokens, expected at most {}; set max_length", source.where(),
                        size, kMaxRowTokens);
    }
    return row;
  }

  const RowTokenizer& tokenizer_;
  const std::vector<Row>& rows_;
  const int64_t keep_;  // tokens of a row that are kept
  std::vector<Example> examples_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> first_bad_{std::numeric_limits<size_t>::max()};
  std::atomic<int64_t> num_split_prompts_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
};

// The tokens of a row that can matter later. Only `wrapped` and bfd_split use what lies beyond
// max_length.
int64_t tokens_to_keep(const PrepareOptions& options) {
  const bool keep_all =
      options.max_length == 0 || (options.packing && options.packing_strategy != "bfd");
  return keep_all ? std::numeric_limits<int64_t>::max() : options.max_length;
}

void drop_untrained(Dataset& dataset) {
  const auto is_untrained = [](const Example& row) {
    return std::all_of(row.labels.begin(), row.labels.end(),
                       [](int32_t label) { return label == kNotTrained; });
  };
  dataset.num_dropped = static_cast<int64_t>(std::erase_if(dataset.rows, is_untrained));
}

void shuffle(std::vector<Example>& rows, uint64_t seed) {
  std::vector<Example> shuffled;
  shuffled.reserve(rows.size());
  for (const int64_t i : NumpyGenerator(seed).permutation(static_cast<int64_t>(rows.size()))) {
    shuffled.push_back(std::move(rows[i]));
  }
  rows = std::move(shuffled);
}

void merge_documents(std::vector<Example>& rows) {
  for (Example& row : rows) row.lengths.assign(1, static_cast<int32_t>(row.ids.size()));
}

void count(Dataset& dataset, const PrepareOptions& options, size_t num_sources) {
  for (const Example& row : dataset.rows) {
    dataset.num_tokens += static_cast<int64_t>(row.ids.size());
    dataset.num_targets += count_targets(row);
  }
  if (dataset.num_targets > 0) return;
  throw FormatError(
      "{}: found no token to train on in {} rows ({} of them dropped because all their labels are "
      "masked), expected at least one; check the label masks and max_length {}",
      options.subject, num_sources, dataset.num_dropped, options.max_length);
}

}  // namespace

Dataset prepare(const std::vector<Row>& rows, const text::Tokenizer& tokenizer,
                const text::ChatTemplate* tmpl, const PrepareOptions& options) {
  check_options(options);
  if (rows.empty()) {
    throw FormatError("{}: found no rows, expected at least one", options.subject);
  }
  const RowFormat format = detect_common_format(rows, options.dataset_text_field);
  const RowTokenizer row_tokenizer(tokenizer, tmpl, options, format);
  ParallelTokenizer parallel(row_tokenizer, rows, tokens_to_keep(options));
  Dataset dataset;
  dataset.rows = parallel.run(options.threads);
  dataset.num_split_prompts = parallel.num_split_prompts();
  if (options.packing) {
    // The reference shuffles before packing too, with the same seed.
    if (options.shuffle) shuffle(dataset.rows, options.seed);
    dataset.rows = pack(std::move(dataset.rows), options.max_length, options.packing_strategy);
    if (!options.separate_documents) merge_documents(dataset.rows);
  } else if (options.max_length > 0) {
    drop_untrained(dataset);
  }
  if (options.shuffle) shuffle(dataset.rows, options.seed);
  count(dataset, options, rows.size());
  return dataset;
}

}  // namespace strata::data
