// A model whose vocabulary grows: which weights have a row a token, and the first values of the
// rows that no file holds. Owns: the arithmetic of transformers' resize_token_embeddings. Never:
// tokens, files, or where values lie. Source: transformers 5.23 modeling_utils.py.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "strata/models/model.h"

namespace strata::models {

// A weight of the embedding or of the output layer under its name there; a tied weight has two.
struct VocabularyWeight {
  std::string name;  // "model.embed_tokens.weight", "lm_head.weight"
  nn::Parameter* parameter;
};

// The embedding's weight, then the output layer's and its bias.
std::vector<VocabularyWeight> vocabulary_weights(Model& model);

// Marks the rows from `num_old` on of every weight with a row a token (biases of the output layer
// too) as absent from the base's files, or the rows that these have beyond the model's as unused;
// 0 marks nothing. Call after attaching adapters and before check_weights(). ConfigError where such
// a weight is quantised.
void mark_new_rows(Model& model, int64_t num_old);

// How new rows start. Mean resizing: drawn from a normal distribution with the mean of the old rows
// and 1e-9 of their covariance, or their mean where that is not positive definite. Else: normal
// with deviation `initializer_range`; zero for a bias.
struct NewRowOptions {
  bool mean_resizing = true;
  double initializer_range = 0.02;
  bool has_bias = false;  // the layer of the weight, whose values are drawn with it
};

// Old rows [begin, begin + count) as fp32, flat or [count, columns].
using ReadRows = std::function<at::Tensor(int64_t begin, int64_t count)>;

// The new rows [num_new_rows(), columns] (a bias: [num_new_rows()]) in the parameter's type.
// `generator` goes on as the reference's does when it makes the larger layer, so that equal seeds
// give equal rows. Memory: 64 MiB of old rows at a time, and the covariance, columns squared.
at::Tensor draw_new_rows(const nn::Parameter& parameter, const ReadRows& old_rows,
                         const NewRowOptions& options, at::Generator& generator);

}  // namespace strata::models
