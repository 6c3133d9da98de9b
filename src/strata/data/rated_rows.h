// From tokenized answers with their ratings to rows as they are trained: what TRL's KTOTrainer does
// to a set after tokenizing. Owns: the order of preferences that become rated answers, which
// documents are too long, and which answer stands after which other prompt. Never tokenizes.
#pragma once

#include <cstdint>
#include <vector>

#include "strata/data/batch.h"
#include "strata/data/prepare.h"

namespace strata::data {

// Takes rows of parts: a prompt and its answer (lengths {P, C}) with a rating, or a prompt with its
// better answer and with its worse one ({P, C, P, C}) without. Hands on rows of one document,
// prompt and answer cut to max_length, or of two: with `mismatched_rows` n the prompt also stands
// before the answer of the row before it, within each n rows (the first gets the last's). Of every
// 1000 preferences all better answers come before all worse ones, as in a map of `datasets`.
// Documents whose prompt alone fills max_length, or of which cutting leaves no trained token, are
// left out.
// Memory: `mismatched_rows` rows; of preferences up to 1000 more.
class RatedRows {
 public:
  // Keeps a reference to the options.
  RatedRows(const PrepareOptions& options, Preparation::Keep keep);

  // Errors: FormatError for two documents of more than kMaxRowTokens together.
  void add(const ExampleView& row);
  // Hands on what still waits.
  void finish();

  int64_t num_long() const { return num_long_; }
  int64_t num_dropped() const { return num_dropped_; }

 private:
  void release_rejected();
  void take(Example answer);
  void release_block();
  void require_room(const Example& row) const;

  const PrepareOptions& options_;
  Preparation::Keep keep_;
  std::vector<Example> rejected_;  // wait for the better answers of their thousand
  std::vector<Example> block_;     // of mismatched_rows, while it fills
  int64_t num_long_ = 0, num_dropped_ = 0;
};

}  // namespace strata::data
