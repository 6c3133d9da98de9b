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
  constexpr std::string_view kPolicies[] = {"truncate", "drop", "split"};
  if (std::ranges::find(kPolicies, options.long_rows) == std::end(kPolicies)) {
    throw ConfigError("long_rows: found \"{}\", expected truncate, drop or split",
                      options.long_rows);
  }
  if (options.threads < 1) {
    throw ConfigError("threads: found {}, expected at least 1", options.threads);
  }
}

// What became of a row.
enum class Fate : uint8_t { kGood, kLong, kBad };

// Tokenizes rows on several threads. Each row's result has its own place and the error of the first
// bad row wins, so that nothing depends on the number of threads.
class ParallelTokenizer {
 public:
  ParallelTokenizer(const RowTokenizer& tokenizer, const RowFormat& format,
                    const std::vector<Row>& rows, const PrepareOptions& options)
      : tokenizer_(tokenizer),
        format_(format),
        rows_(rows),
        options_(options),
        examples_(rows.size()),
        fates_(rows.size(), Fate::kGood) {}

  void run() {
    const size_t useful = (rows_.size() + kChunk - 1) / kChunk;
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < std::min<size_t>(useful, static_cast<size_t>(options_.threads)); ++i) {
      threads.emplace_back([this] { work(); });
    }
    work();
    threads.clear();
    if (fatal_) std::rethrow_exception(fatal_);
    if (error_ && !options_.skip_bad_rows) std::rethrow_exception(error_);
  }

  // The rows that are left, in order; counts the others.
  void take(Dataset& dataset) {
    const auto limit = static_cast<size_t>(options_.max_length);
    dataset.num_split_prompts = num_split_prompts_;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (fates_[i] == Fate::kBad) {
        ++dataset.bad_rows.count;
        continue;
      }
      dataset.num_long += fates_[i] == Fate::kLong;
      if (fates_[i] == Fate::kLong && options_.long_rows == "drop") continue;
      if (fates_[i] == Fate::kLong && options_.long_rows == "split") {
        split(examples_[i], limit, dataset.rows);
      } else {
        dataset.rows.push_back(std::move(examples_[i]));
      }
    }
    if (error_) dataset.bad_rows.first = message_of(error_);
  }

 private:
  static constexpr size_t kChunk = 16;

  static std::string message_of(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& caught) {
      return caught.what();
    }
  }

  static void split(const Example& row, size_t limit, std::vector<Example>& into) {
    for (size_t begin = 0; begin < row.ids.size(); begin += limit) {
      const size_t end = std::min(begin + limit, row.ids.size());
      const auto part = [begin, end](const std::vector<int32_t>& all) {
        return std::vector<int32_t>(all.begin() + static_cast<ptrdiff_t>(begin),
                                    all.begin() + static_cast<ptrdiff_t>(end));
      };
      into.push_back({.ids = part(row.ids),
                      .labels = part(row.labels),
                      .lengths = {static_cast<int32_t>(end - begin)}});
    }
  }

  void work() {
    for (size_t begin = next_.fetch_add(kChunk); begin < rows_.size();
         begin = next_.fetch_add(kChunk)) {
      const size_t end = std::min(begin + kChunk, rows_.size());
      for (size_t i = begin; i < end && (options_.skip_bad_rows || i < first_bad_); ++i) {
        tokenize(i);
      }
      if (options_.progress) report(end - begin);
    }
  }

  void report(size_t count) {
    const std::lock_guard lock(mutex_);
    num_done_ += static_cast<int64_t>(count);
    options_.progress(num_done_, static_cast<int64_t>(rows_.size()));
  }

  void tokenize(size_t i) {
    try {
      TokenizedRow row = tokenize_row(rows_[i]);
      num_split_prompts_ += row.prompt_is_split;
      fit_length(row.example, fates_[i]);
      require_size(rows_[i], row.example);
      examples_[i] = std::move(row.example);
    } catch (const FormatError&) {
      fates_[i] = Fate::kBad;
      keep_error(i);
    } catch (...) {
      // Not the row's fault (memory, a wrong setting): no rule for bad rows can help.
      const std::lock_guard lock(mutex_);
      if (!fatal_) fatal_ = std::current_exception();
      first_bad_ = 0;
      next_ = rows_.size();
    }
  }

  void keep_error(size_t i) {
    const std::lock_guard lock(mutex_);
    if (i < first_bad_) {
      first_bad_ = i;
      error_ = std::current_exception();
    }
  }

  TokenizedRow tokenize_row(const Row& source) const {
    try {
      if (options_.skip_bad_rows) require_format(source);
      return tokenizer_.tokenize(source);
    } catch (const FormatError& error) {
      // The chat template does not know which row it was given.
      const std::string where = source.where();
      if (std::string_view(error.what()).starts_with(where)) throw;
      throw FormatError("{}: {}", where, error.what());
    }
  }

  void require_format(const Row& row) const {
    if (detect_format(row, options_.dataset_text_field) == format_) return;
    throw FormatError("{}: found columns of another kind of row, expected those of the first row",
                      row.where());
  }

  // Cuts a long row where that is the rule, so that memory holds no more than is used.
  void fit_length(Example& example, Fate& fate) const {
    const auto size = static_cast<int64_t>(example.ids.size());
    const bool keeps_all =
        options_.packing && options_.packing_strategy != "bfd" && options_.long_rows != "drop";
    if (options_.max_length == 0 || size <= options_.max_length || keeps_all) return;
    fate = Fate::kLong;
    if (options_.long_rows == "split") return;
    for (auto* column : {&example.ids, &example.labels}) {
      column->resize(static_cast<size_t>(options_.max_length));
      column->shrink_to_fit();
    }
    example.lengths.assign(1, static_cast<int32_t>(options_.max_length));
  }

  static void require_size(const Row& source, const Example& example) {
    if (static_cast<int64_t>(example.ids.size()) <= kMaxRowTokens) return;
    throw FormatError("{}: found {} tokens, expected at most {}; set max_length", source.where(),
                      example.ids.size(), kMaxRowTokens);
  }

  const RowTokenizer& tokenizer_;
  const RowFormat& format_;
  const std::vector<Row>& rows_;
  const PrepareOptions& options_;
  std::vector<Example> examples_;
  std::vector<Fate> fates_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> first_bad_{std::numeric_limits<size_t>::max()};
  std::atomic<int64_t> num_split_prompts_{0};
  std::mutex mutex_;
  int64_t num_done_ = 0;
  std::exception_ptr error_;  // of the first bad row
  std::exception_ptr fatal_;
};

// The kind of the rows. Where bad rows are left out, that of the first good one.
RowFormat format_of(const std::vector<Row>& rows, const PrepareOptions& options) {
  if (!options.skip_bad_rows) return detect_common_format(rows, options.dataset_text_field);
  for (const Row& row : rows) {
    try {
      return detect_format(row, options.dataset_text_field);
    } catch (const FormatError&) {
    }
  }
  return detect_format(rows.front(), options.dataset_text_field);
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
  const RowFormat format = format_of(rows, options);
  const RowTokenizer row_tokenizer(tokenizer, tmpl, options, format);
  ParallelTokenizer parallel(row_tokenizer, format, rows, options);
  parallel.run();
  Dataset dataset;
  dataset.num_sources = static_cast<int64_t>(rows.size());
  parallel.take(dataset);
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
