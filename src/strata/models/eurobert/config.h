// The settings of a checkpoint of EuroBERT, which are Llama's and how its head reads a text, read
// from config.json and checked. Never: weights. Source: transformers configuration_eurobert.py.
#pragma once

#include "strata/base/json.h"
#include "strata/models/llama/config.h"

namespace strata::models {

// Which rows of a text the head reads: the first, the mean of all, or all of them, so that what it
// gives is the mean.
enum class EuroBertPooling { kFirst, kMean, kLate };

struct EuroBertConfig {
  LlamaConfig llama;  // its num_labels are the head's
  EuroBertPooling pooling = EuroBertPooling::kLate;
  bool has_new_dense = false;  // the head's first layer is not in the files
};

// Errors: as parse_llama_config().
EuroBertConfig parse_eurobert_config(const Json& config);

}  // namespace strata::models
