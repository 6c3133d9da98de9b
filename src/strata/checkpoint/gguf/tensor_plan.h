// Which tensors a GGUF file of a model has, and out of which of its weights each is made. Owns:
// names, types and the order of rows. Never: values (tensor_rows.h), files.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "strata/checkpoint/convert/saved_state.h"
#include "strata/checkpoint/gguf/family.h"
#include "strata/hf/formats/gguf.h"

namespace strata::checkpoint {

struct PlannedTensor {
  hf::GgufTensor tensor = {};
  // Places in the state, whose rows follow each other; empty: `values`.
  std::vector<size_t> sources = {};
  std::vector<float> values = {};
  // In each head, rows i and i + half become neighbours; 0: rows keep their order.
  int64_t heads_in_pairs = 0;
  bool is_transposed = false;  // the source is [in, out]
  float added = 0;             // to each value
};

struct TensorPlan {
  std::vector<PlannedTensor> tensors;  // in the order of the file
  int64_t num_rows = 0;                // of the embedding
  std::vector<std::string> notes;
};

// The type in which the state's run writes its result, or that of its weights; fp32 for any other.
hf::GgufType gguf_type_of(const SavedState& state);

// `type`: of matrices; vectors and what llama.cpp wants so stay in fp32, and rows that are no whole
// number of blocks in fp16. FormatError where the state's weights are not those that config.json
// implies; ConfigError for weights that are no plain numbers, and for an output layer that the
// architecture cannot have. Memory: the embedding, where the state may hold it twice.
TensorPlan plan_tensors(SavedState& state, const Json& config, const GgufFamily& family,
                        hf::GgufType type);

}  // namespace strata::checkpoint
