// Answers of an encoder-decoder model while it trains, sharded as it is, greedily or by a beam
// search. Owns: the loop over tokens and which of them may follow. Never: what the settings and the
// model's files ask for (answers.h), sampling, answers of causal models (generate/).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strata/generate/generation_config.h"
#include "strata/nn/batch.h"
#include "strata/train/loop/stop_signals.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

struct AnswerOptions {
  int64_t max_new_tokens;
  int64_t start;                      // the token before each answer
  std::vector<int32_t> eos_ids = {};  // an answer ends with one of them
  // The first token of each answer, and the last one of those that have all; -1: the likeliest.
  int64_t forced_first = -1;
  int64_t forced_last = -1;
  std::vector<int32_t> banned_ids = {};  // of tokens that are not forced
  generate::BeamSettings beams = {};
  int64_t no_repeat_ngram_size = 0;  // no so many tokens twice in an answer and its start; 0: any
  int64_t min_new_tokens = 0;        // before them no answer ends, but for forced tokens
  StopRequest is_asked_to_stop = {};
};

// The ids after the start token for each document.
using Answers = std::vector<std::vector<int32_t>>;

// For each document of `batch.source`; the rest of the batch is not read. Nothing when a rank was
// asked to stop meanwhile. Collective over the mesh: every rank with a batch, of any documents.
std::optional<Answers> decode_answers(const nn::Batch& batch, const AnswerOptions& options,
                                      Trainee& trainee);

}  // namespace strata::train
