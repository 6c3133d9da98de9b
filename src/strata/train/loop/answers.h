// What evaluations ask of the answers of an encoder-decoder model, by the settings and the base's
// files, and how many of them are exact. Never: the loop over tokens (decode_answers.h).
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

// The beams of such an answer: the setting's, else the file's.
generate::BeamSettings answer_beams(const config::RunConfig& config,
                                    const generate::GenerationConfig& generation);

// What the base's files ask of generation that evaluations do not do, a line each; none where they
// write no answers. ConfigError for answers of more tokens than the model has positions.
std::vector<std::string> answer_warnings(const config::RunConfig& config);

// The share of rows whose answer is the target, compared as text without special tokens and without
// white space at the ends. Targets are those of training, cut at max_target_length. Nothing when a
// rank was asked to stop meanwhile. Collective; the same result on every rank.
std::optional<double> exact_answers(const data::TokenStore& dataset,
                                    const config::RunConfig& config,
                                    const text::Tokenizer& tokenizer, Trainee& trainee,
                                    const StopRequest& is_asked_to_stop);

}  // namespace strata::train
