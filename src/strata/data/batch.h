// What the data side hands to training: tokenized rows and micro-batches, in plain vectors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace strata::data {

// What somebody thought of an answer; kNone: nobody was asked.
enum class Rating : uint8_t { kNone, kUndesirable, kDesirable };

// One row ready to train on. `labels` has the length of `ids`; -100 = not trained. A packed row
// holds several documents: `lengths` are their token counts (one entry for an ordinary row). A row
// for an encoder-decoder model holds two, source and target (rows/pair_tokenizer.h); so does a row
// of preferences, the prompt with the better answer and with the worse one
// (rows/preference_tokenizer.h). A rated row holds the prompt with its answer and, where a
// divergence is estimated, the prompt with the answer of another row (rated_rows.h). A labelled row
// holds one document (rows/labelled_row.h).
struct Example {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;
  std::vector<int32_t> lengths;
  Rating rating = Rating::kNone;
  // Of a pair of texts: the first token of the second's segment, where the tokenizer gives segments
  // to models; 0: all are of the first.
  int32_t second_text = 0;
  // What is to be told of a labelled row: the numbers of its labels among those of the set
  // (DatasetStats::labels), or numbers.
  std::vector<float> row_targets = {};
};

// A row as batches are made of it: memory of somebody else, who must outlive the view.
struct ExampleView {
  std::span<const int32_t> ids, labels, lengths;
  Rating rating = Rating::kNone;
  int32_t second_text = 0;
  std::span<const float> row_targets = {};

  ExampleView(std::span<const int32_t> ids_in, std::span<const int32_t> labels_in,
              std::span<const int32_t> lengths_in, Rating rating_in = Rating::kNone)
      : ids(ids_in), labels(labels_in), lengths(lengths_in), rating(rating_in) {}
  ExampleView(const Example& row)
      : ids(row.ids),
        labels(row.labels),
        lengths(row.lengths),
        rating(row.rating),
        second_text(row.second_text),
        row_targets(row.row_targets) {}

  // In memory of its own.
  Example copy() const {
    return {.ids = {ids.begin(), ids.end()},
            .labels = {labels.begin(), labels.end()},
            .lengths = {lengths.begin(), lengths.end()},
            .rating = rating,
            .second_text = second_text,
            .row_targets = {row_targets.begin(), row_targets.end()}};
  }
};

// One rank's micro-batch: the rows' documents one after the other, without padding. T = tokens.
struct MicroBatch {
  std::vector<int64_t> ids;         // [T]
  std::vector<int64_t> targets;     // [T] label of the next token inside the document, else -100
  std::vector<int64_t> positions;   // [T] restart at 0 for each document
  std::vector<int64_t> token_keys;  // [T] row_index * 2^24 + position in the row
  std::vector<int64_t> token_types = {};  // [T] 1 in a second text; empty: all are 0
  std::vector<int64_t> offsets;           // [documents + 1]
  // [documents] label of the first token, which only something in front of it can predict.
  std::vector<int64_t> first_labels;
  std::vector<int64_t> rows;        // index in the data set of each row
  std::vector<int64_t> row_tokens;  // tokens of each row (what the reference counts as num_tokens)
  int64_t num_targets = 0;          // targets that are not -100

  // Encoder-decoder models: what the encoder reads, a document for each of those above, which are
  // the decoder's (its start token before, the last token not read). Empty otherwise. S = tokens.
  std::vector<int64_t> source_ids;         // [S]
  std::vector<int64_t> source_positions;   // [S]
  std::vector<int64_t> source_token_keys;  // [S] other keys than those above
  std::vector<int64_t> source_offsets;     // [documents + 1]

  std::vector<std::vector<float>> row_targets = {};  // [rows] of labelled rows; empty: none is
  // Rows of an evaluation that count, the first: others only fill the batch. Fewer than none: all.
  int64_t num_real_rows = -1;

  // Rated rows, of which the above is one document each.
  std::vector<Rating> ratings = {};  // [rows]; empty: nothing is rated
  // The same rows' prompts with the answers of others, a document for each; null: there are none.
  std::shared_ptr<const MicroBatch> mismatched = {};
};

}  // namespace strata::data
