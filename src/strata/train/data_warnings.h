// What a run says of its prepared data before it begins: probable mistakes and what was left out.
// Never: stops the run.
#pragma once

#include <string>
#include <vector>

#include "strata/config/run_config.h"
#include "strata/data/dataset_stats.h"
#include "strata/train/datasets.h"
#include "strata/train/setup/vocabulary.h"

namespace strata::train {

// A line for each: marks and end tokens that the tokenizer lacks, texts that the template leaves
// out, rows that are longer than the tokenizer or the model was made for, settings for rows or
// tokens that are not there. `vocabulary`: its tokenizer may have moved to `sets`. Rows are named
// by file and line.
std::vector<std::string> find_data_mistakes(const config::RunConfig& config,
                                            const ModelLimits& limits, const Vocabulary& vocabulary,
                                            const Datasets& sets);

// What was left out, cut or is suspicious in a prepared set, a line each. `max_length`: what it was
// cut at (Datasets).
std::vector<std::string> describe_losses(const data::DatasetStats& stats,
                                         const config::RunConfig& config, int64_t max_length);

}  // namespace strata::train
