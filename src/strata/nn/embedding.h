// Token embedding over a parameter, with what adapters add to it: a low-rank branch, rows that
// train in place of the weight's. Owns: the autograd function around ops::embedding. Never: the
// kernel; which weight is tied to it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/parameter.h"
#include "strata/nn/token_rows.h"

namespace strata::nn {

// Rows of `weight` [V, H] for ids int64 [T]: [T, H]. `anchor` is any tensor; the result requires
// grad if it does (I4), and only then the weight's gradient is written. Tokens equal to
// `padding_id` give the weight no gradient, as in the reference's nn.Embedding.
at::Tensor embed(const at::Tensor& anchor, const at::Tensor& ids, Parameter& weight,
                 std::optional<int64_t> padding_id);

// LoRA of an embedding: row i of the weight + scaling * A[:, i]^T B^T. PEFT drops nothing here.
// With a magnitude (DoRA) every column of that sum is brought to a trained length; the length it
// had is held constant in backward.
struct EmbeddingBranch {
  Parameter a;  // [r, V]
  Parameter b;  // [H, r]
  double scaling = 1.0;
  std::unique_ptr<Parameter> magnitude = nullptr;  // [H]
};

// Column lengths of W + scaling * (B A)^T, fp32 [H]. Memory: some rows at a time.
at::Tensor dora_column_norms(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                             double scaling);

// Invariants: I1, I2. Every forward under grad mode with an anchor that requires grad is followed
// by at most one backward, which writes each trainable gradient exactly once.
class Embedding {
 public:
  // `path`: module path such as "model.embed_tokens".
  Embedding(std::string path, std::shared_ptr<Parameter> weight, std::optional<int64_t> padding_id)
      : path_(std::move(path)), weight_(std::move(weight)), padding_id_(padding_id) {
    weight_->set_embedding_table();
  }

  const std::string& path() const { return path_; }
  Parameter& weight() const { return *weight_; }
  const std::shared_ptr<Parameter>& shared_weight() const { return weight_; }
  EmbeddingBranch* low_rank() const { return low_rank_.get(); }
  void attach_low_rank(std::unique_ptr<EmbeddingBranch> branch) { low_rank_ = std::move(branch); }
  // A tied output layer takes the same rows.
  const std::shared_ptr<TokenRows>& token_rows() const { return token_rows_; }
  void attach_token_rows(std::shared_ptr<TokenRows> rows) { token_rows_ = std::move(rows); }

  // Weight, A, B, rows: those that there are.
  void append_parameters(std::vector<Parameter*>& list) const;

  // [T, H] for ids int64 [T]; `anchor` as for embed().
  at::Tensor forward(const at::Tensor& anchor, const at::Tensor& ids) const;

 private:
  std::string path_;
  std::shared_ptr<Parameter> weight_;
  std::optional<int64_t> padding_id_;
  std::unique_ptr<EmbeddingBranch> low_rank_;
  std::shared_ptr<TokenRows> token_rows_;
};

}  // namespace strata::nn
