// Greedy answers of an encoder-decoder model while it trains, sharded as it is, and how many of
// them are exact. Owns: the loop over tokens. Never: sampling; answers of causal models
// (generate/).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/config/run_config.h"
#include "strata/data/store/token_store.h"
#include "strata/text/tokenizer.h"
#include "strata/train/loop/stop_signals.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

// The most tokens of an answer that an evaluation writes: those that the base's files bound it by
// go before the settings, as in the reference. 0: it writes none.
int64_t max_answer_tokens(const config::RunConfig& config,
                          const generate::GenerationConfig& generation);

// What the base's files ask of generation that evaluations do not do, a line each; none where they
// write no answers. ConfigError for answers of more tokens than the model has positions.
std::vector<std::string> answer_warnings(const config::RunConfig& config);

struct AnswerOptions {
  int64_t max_new_tokens;
  int64_t start;                      // the token before each answer
  std::vector<int32_t> eos_ids = {};  // an answer ends with one of them
  // The first token of each answer, and the last one of those that have all; -1: the likeliest.
  int64_t forced_first = -1;
  int64_t forced_last = -1;
  std::vector<int32_t> banned_ids = {};  // of tokens that are not forced
  StopRequest is_asked_to_stop = {};
};

// The ids after the start token for each document of `batch.source`; the rest of the batch is not
// read. Nothing when a rank was asked to stop meanwhile. Collective over the mesh: every rank with
// a batch, of any documents.
std::optional<std::vector<std::vector<int32_t>>> greedy_answers(const nn::Batch& batch,
                                                                const AnswerOptions& options,
                                                                Trainee& trainee);

// The share of rows whose answer is the target, compared as text without special tokens and without
// white space at the ends. Targets are those of training, cut at max_target_length. Nothing when a
// rank was asked to stop meanwhile. Collective; the same result on every rank.
std::optional<double> exact_answers(const data::TokenStore& dataset,
                                    const config::RunConfig& config,
                                    const text::Tokenizer& tokenizer, Trainee& trainee,
                                    const StopRequest& is_asked_to_stop);

}  // namespace strata::train
