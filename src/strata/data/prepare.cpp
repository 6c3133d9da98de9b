#include "strata/data/prepare.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/data/collate.h"
#include "strata/data/inspect.h"
#include "strata/data/long_rows.h"
#include "strata/data/pack.h"
#include "strata/data/rated_rows.h"
#include "strata/data/row_pool.h"
#include "strata/data/rows/labelled_row.h"
#include "strata/data/rows/pair_tokenizer.h"
#include "strata/data/rows/preference_row.h"
#include "strata/data/rows/rated_row.h"
#include "strata/data/rows/row_tokenizer.h"
#include "strata/data/rows/unfolded_messages.h"
#include "strata/data/store/waiting_rows.h"

namespace strata::data {
namespace {

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  }
}

bool is_format_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const FormatError&) {
    return true;
  } catch (...) {
    return false;
  }
}

// Of a set. More are no classes but texts or numbers of each row.
constexpr size_t kMostLabels = 65536;

}  // namespace

// The way of a row: tokenize, cut or drop, wait for the others where the order changes, pack (or,
// of rated answers, cut and stand beside another's), wait again where packed rows are shuffled,
// keep.
class Preparation::Steps {
 public:
  Steps(const text::Tokenizer& tokenizer, const text::ChatTemplate* tmpl,
        const PrepareOptions& options, Keep keep, bool is_mixed)
      : tokenizer_(tokenizer),
        template_(tmpl),
        options_(options),
        keep_(std::move(keep)),
        is_mixed_(is_mixed) {
    check_prepare_options(options);
    if (is_mixed || options.shuffle) waiting_.emplace();
    // The reference shuffles before packing and after it, with the same seed.
    if (options.packing && options.shuffle) packed_.emplace();
    if (options.packing) {
      packer_.emplace(options.max_length, options.packing_strategy,
                      [this](Example row) { take_packed(std::move(row)); });
    }
    if (options.rated) {
      rated_.emplace(options, [this](const ExampleView& row) { this->keep(row); });
    }
  }

  bool add(RowBatch batch) {
    take_outcomes();
    if (options_.progress && stats_.num_sources > 0) options_.progress(stats_.num_sources, part_);
    if (is_full()) return false;
    stats_.num_sources += static_cast<int64_t>(batch.rows.size());
    part_ = batch.part;
    for (Row& row : batch.rows) unfold_messages(row, options_.dataset_text_field);
    find_format(batch.rows);
    if (!pool_) return true;  // only bad rows so far
    if (format_.kind == RowKind::kMessages || format_.kind == RowKind::kPromptMessages ||
        format_.kind == RowKind::kRatedMessages) {
      count_roles(batch.rows, stats_.roles);
    }
    if (format_.kind == RowKind::kPreferenceMessages) {
      count_preference_roles(batch.rows, stats_.roles);
    }
    if (format_.kind == RowKind::kInstruction) {
      for (const char* role : {"user", "assistant"}) {
        stats_.roles[role] += static_cast<int64_t>(batch.rows.size());
      }
    }
    for (const Row& row : batch.rows) {
      count_unused_columns(row, format_, options_.dataset_text_field, stats_.unused_columns);
      stats_.num_text_fields += reads_text_field(row, format_, options_.dataset_text_field);
    }
    pool_->start(std::move(batch.rows));
    return true;
  }

  void take_outcomes() {
    if (!pool_) return;
    for (RowOutcome& outcome : pool_->wait()) take(std::move(outcome));
  }

  DatasetStats finish(const std::vector<int64_t>& order) {
    take_outcomes();
    if (stats_.num_sources == 0) {
      throw FormatError("{}: found no rows, expected at least one", options_.subject);
    }
    if (!pool_) throw FormatError(stats_.bad_rows.first);
    if (waiting_) waiting_->replay(order_of(order), [this](const auto& row) { pack_row(row); });
    if (packer_) packer_->finish();
    if (rated_) finish_rated();
    if (packed_) {
      packed_->replay(shuffled(count_up(packed_->count()), options_.seed),
                      [this](const auto& row) { keep(row); });
    }
    if (options_.progress) options_.progress(stats_.num_sources, 1.0);
    if (stats_.num_targets > 0) return stats_;
    const BadRows& bad = stats_.bad_rows;
    // A pair is two rated answers, each of which may be dropped by itself.
    const std::string dropped = options_.rated ? counted(stats_.num_dropped, "answer")
                                               : fmt::format("{} of them", stats_.num_dropped);
    throw FormatError(
        "{}: found no {} to train on in {} ({} dropped because {}, {} longer than "
        "max_length {} ({}), {} bad), expected at least one; check {}max_length{}",
        options_.subject,
        options_.preference ? "pair"
        : options_.rated    ? "answer"
        : options_.labelled ? "text"
                            : "token",
        counted(stats_.num_sources, "row"), dropped,
        options_.rated     ? "nothing is left of them"
        : learns_answers() ? "nothing is left of an answer"
                           : "all their labels are masked",
        stats_.num_long, options_.max_length, options_.long_rows, bad.count,
        learns_answers() ? "" : "the label masks and ",
        bad.count > 0 ? "; the first bad row: " + bad.first : "");
  }

 private:
  bool learns_answers() const { return options_.preference || options_.rated || options_.labelled; }
  bool is_full() const { return options_.max_rows > 0 && num_kept_ >= options_.max_rows; }

  RowFormat format_of(const Row& row) const {
    if (options_.pairs) return detect_pair(row, *options_.pairs);
    if (options_.labelled) return detect_labelled(row, *options_.labelled);
    const std::string& text_field = options_.dataset_text_field;
    if (options_.rated) return detect_rated(row, text_field);
    return options_.preference ? detect_preference(row, text_field)
                               : detect_format(row, text_field);
  }

  // The kind of the rows is that of the first, where bad rows are left out of the first good one.
  void find_format(const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      if (pool_) return;
      try {
        format_ = format_of(row);
      } catch (const FormatError& error) {
        if (!options_.skip_bad_rows) throw;
        if (first_bad_.empty()) first_bad_ = error.what();
        continue;
      }
      first_row_ = row.where();
      stats_.label_kind = format_.label;
      if (const auto* names = class_names_in(row, format_)) stats_.class_names = *names;
      row_tokenizer_.emplace(tokenizer_, template_, options_, format_, first_row_);
      pool_.emplace([this](const Row& r, RowOutcome& outcome) { tokenize(r, outcome); },
                    options_.threads);
    }
    if (pool_) return;
    stats_.bad_rows.add({static_cast<int64_t>(rows.size()), first_bad_});
    if (is_mixed_) row_ends_.insert(row_ends_.end(), rows.size(), 0);
  }

  // Called by the pool's threads.
  void tokenize(const Row& row, RowOutcome& outcome) const {
    outcome.place = row.place();
    try {
      if (!options_.pairs && !options_.labelled) {
        require_format(row, format_of(row), format_, first_row_);
      }
      outcome.row = row_tokenizer_->tokenize(row);
    } catch (const FormatError& error) {
      // The chat template does not know which row it was given.
      const std::string where = row.where();
      if (std::string_view(error.what()).starts_with(where)) throw;
      throw FormatError("{}: {}", where, error.what());
    }
    outcome.is_long = fit_length(options_, outcome.row.example) || outcome.row.is_cut;
    const size_t size = outcome.row.example.ids.size();
    if (static_cast<int64_t>(size) <= kMaxRowTokens) return;
    throw FormatError("{}: found {} tokens, expected at most {}; set max_length", row.where(), size,
                      kMaxRowTokens);
  }

  void take(RowOutcome outcome) {
    if (is_full()) return;  // the rest of a batch: as if it had not been read
    if (outcome.error) {
      if (!options_.skip_bad_rows || !is_format_error(outcome.error)) {
        std::rethrow_exception(outcome.error);
      }
      stats_.bad_rows.add({1, message_of(outcome.error)});
    } else {
      stats_.num_split_prompts += outcome.row.prompt_is_split;
      stats_.num_cut_sources += outcome.row.source_is_cut;
      stats_.num_cut_targets += outcome.row.target_is_cut;
      stats_.num_long += outcome.is_long;
      if (!outcome.is_long || options_.long_rows != "drop") describe(outcome);
      if (!outcome.is_long || options_.long_rows == "truncate") {
        number_labels(outcome);
        take(std::move(outcome.row.example));
      } else if (options_.long_rows == "split") {
        for (Example& part : split_row(outcome.row.example, options_.max_length)) {
          take(std::move(part));
        }
      }
    }
    if (is_mixed_) row_ends_.push_back(num_taken_);
  }

  // By their places among the labels of the set, which is the order in which they came.
  void number_labels(RowOutcome& outcome) {
    for (const std::string& name : outcome.row.labels) {
      const auto [found, is_new] = label_numbers_.try_emplace(name, stats_.labels.size());
      if (is_new && stats_.labels.size() == kMostLabels) {
        throw FormatError(
            "{}: found more than {} different labels, expected classes that texts share; name "
            "their "
            "column with --label_column_name, or add --do_regression true for numbers",
            outcome.place.text(), kMostLabels);
      }
      if (is_new) stats_.labels.push_back({.name = name, .first = outcome.place.text()});
      ++stats_.labels[found->second].count;
      outcome.row.example.row_targets.push_back(static_cast<float>(found->second));
    }
  }

  void describe(const RowOutcome& outcome) {
    stats_.note_hidden_texts(outcome.row.hidden_texts, outcome.place);
    stats_.note_printed_parts(outcome.row.printed_parts, outcome.place);
    stats_.note_missing_answers(outcome.row.missing_answers, outcome.place);
    const std::vector<int32_t>& lengths = outcome.row.example.lengths;
    if (lengths.empty()) return;
    int64_t tokens = options_.rated ? longest_answer(lengths) : *std::ranges::max_element(lengths);
    if (tokens == 0) return;
    if (options_.max_length > 0 && !options_.pairs) tokens = std::min(tokens, options_.max_length);
    stats_.note_length(tokens, outcome.place);
  }

  // Of the parts that RatedRows takes: the longest prompt with its answer that may stay; 0: none.
  int64_t longest_answer(const std::vector<int32_t>& parts) const {
    int64_t longest = 0;
    for (size_t i = 0; i + 1 < parts.size(); i += 2) {
      const int64_t tokens = int64_t{parts[i]} + parts[i + 1];
      const bool is_out =
          options_.long_rows == "drop" && options_.max_length > 0 && tokens > options_.max_length;
      if (!is_out) longest = std::max(longest, tokens);
    }
    return longest;
  }

  void finish_rated() {
    rated_->finish();
    stats_.num_long += rated_->num_long();
    stats_.num_dropped += rated_->num_dropped();
  }

  void take(Example row) {
    if (is_cut_away(options_, row)) {
      ++stats_.num_dropped;
      return;
    }
    ++num_taken_;
    if (waiting_) return waiting_->add(row);
    pack_row(row);
  }

  // The waiting rows in the order that the mixture and the shuffle give them.
  std::vector<int64_t> order_of(const std::vector<int64_t>& mixed) const {
    std::vector<int64_t> order;
    if (!is_mixed_) {
      order = count_up(waiting_->count());
    } else {
      // A row that was read may have become several, or none.
      for (const int64_t row : mixed) {
        for (int64_t i = row == 0 ? 0 : row_ends_[row - 1]; i < row_ends_[row]; ++i) {
          order.push_back(i);
        }
      }
    }
    return options_.shuffle ? shuffled(std::move(order), options_.seed) : order;
  }

  void pack_row(const ExampleView& row) {
    if (rated_) return rated_->add(row);
    packer_ ? packer_->add(row) : keep(row);
  }

  void take_packed(Example row) {
    if (!options_.separate_documents) {
      row.lengths.assign(1, static_cast<int32_t>(row.ids.size()));
    }
    packed_ ? packed_->add(row) : keep(row);
  }

  // The own document of a rated row.
  static ExampleView own_document(const ExampleView& row) {
    const auto size = static_cast<size_t>(row.lengths[0]);
    return {row.ids.first(size), row.labels.first(size), row.lengths.first(1), row.rating};
  }

  int64_t targets_of(const ExampleView& row) const {
    if (options_.pairs) return row.lengths.back();
    if (options_.labelled) return 1;
    if (options_.rated) return count_targets(own_document(row));
    const bool are_rewarded = options_.preference && options_.preference->are_rewarded;
    return are_rewarded ? static_cast<int64_t>(row.lengths.size()) : count_targets(row);
  }

  void keep(const ExampleView& row) {
    if (is_full()) return;
    ++num_kept_;
    stats_.num_tokens += options_.rated ? row.lengths[0] : static_cast<int64_t>(row.ids.size());
    stats_.num_desirable += row.rating == Rating::kDesirable;
    stats_.num_undesirable += row.rating == Rating::kUndesirable;
    stats_.num_targets += targets_of(row);
    keep_(row);
  }

  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate* template_;
  const PrepareOptions& options_;
  const Keep keep_;
  const bool is_mixed_;
  DatasetStats stats_;
  RowFormat format_;
  std::string first_row_;  // where it is
  std::string first_bad_;  // what was wrong with it, before a good row was found
  double part_ = 0;
  int64_t num_taken_ = 0, num_kept_ = 0;
  std::unordered_map<std::string, size_t> label_numbers_;
  std::vector<int64_t> row_ends_;  // of mixtures: rows taken after each row that was read
  std::optional<WaitingRows> waiting_, packed_;
  std::optional<Packer> packer_;
  std::optional<RatedRows> rated_;
  std::optional<RowTokenizer> row_tokenizer_;
  std::optional<RowPool> pool_;  // the last member: its threads end before what they use
};

Preparation::Preparation(const text::Tokenizer& tokenizer, const text::ChatTemplate* tmpl,
                         const PrepareOptions& options, Keep keep, bool is_mixed)
    : steps_(std::make_unique<Steps>(tokenizer, tmpl, options, std::move(keep), is_mixed)) {}
Preparation::~Preparation() = default;

bool Preparation::add(RowBatch batch) { return steps_->add(std::move(batch)); }
void Preparation::settle() { steps_->take_outcomes(); }
DatasetStats Preparation::finish(const std::vector<int64_t>& order) {
  return steps_->finish(order);
}

Dataset prepare(const std::vector<Row>& rows, const text::Tokenizer& tokenizer,
                const text::ChatTemplate* tmpl, const PrepareOptions& options) {
  Dataset dataset;
  Preparation preparation(tokenizer, tmpl, options, [&dataset](const ExampleView& row) {
    dataset.rows.push_back(row.copy());
  });
  if (!rows.empty()) preparation.add({.rows = rows, .part = 1.0});
  static_cast<DatasetStats&>(dataset) = preparation.finish();
  return dataset;
}

DatasetStats prepare_data(const DataRequest& request, const text::Tokenizer& tokenizer,
                          const text::ChatTemplate* tmpl, const PrepareOptions& options,
                          Preparation::Keep keep) {
  Preparation preparation(tokenizer, tmpl, options, std::move(keep),
                          /*is_mixed=*/!request.weights.empty());
  ReadDataResult read;
  try {
    read = read_data(request, [&](RowBatch batch) { return preparation.add(std::move(batch)); });
  } catch (const Error&) {
    preparation.settle();  // a bad row before what could not be read is named first
    throw;
  }
  DatasetStats stats = preparation.finish(read.order);
  stats.bad_rows.add(read.bad_rows);
  for (const auto& [column, rows] : read.left_out) stats.unused_columns[column] += rows;
  stats.num_sources += read.bad_rows.count;  // which never became rows
  std::unordered_set<std::string> known;
  for (const auto& file : read.files) {
    if (known.insert(file.string()).second) stats.files.push_back(file.string());
  }
  return stats;
}

}  // namespace strata::data
