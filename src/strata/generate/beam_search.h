// Which of several continuations of an answer live on from token to token, which answers are done
// and when no better one can come, for documents side by side. Owns: that choice. Never: the model,
// log-probabilities (nn/beam_candidates.h).
// Source: transformers 5, GenerationMixin._beam_search.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/generate/generation_config.h"
#include "strata/nn/beam_candidates.h"

namespace strata::generate {

// Documents do not feel each other. All tensors are on the CPU.
class BeamSearch {
 public:
  // Requires: at least one beam and one token. An answer ends with one of `eos_ids`, or when it has
  // all its tokens.
  BeamSearch(int64_t documents, const BeamSettings& settings, int64_t max_tokens,
             std::vector<int32_t> eos_ids);

  // How many continuations of a document a step chooses among: so many that as many as there are
  // beams do not end.
  int64_t num_candidates() const { return num_candidates_; }
  // fp32 [D, beams], of what lives; a document's best is the first.
  const at::Tensor& scores() const { return scores_; }
  // One more token of each document, of the likeliest continuations.
  void advance(const nn::BeamCandidates& best);
  // [D * beams]: what lives, without the start token, and which of those that lived before the last
  // token each one goes on from.
  const std::vector<std::vector<int32_t>>& living() const { return living_; }
  const std::vector<int64_t>& parents() const { return parents_; }
  // Documents whose answer may still become another.
  int64_t num_open() const;
  // The best of each document. Requires: no document is open.
  std::vector<std::vector<int32_t>> answers() const;

 private:
  struct Grown;
  Grown grow(const nn::BeamCandidates& best) const;
  void choose_living(const Grown& grown);
  void keep_finished(const Grown& grown);
  void look_ahead();

  const int64_t documents_;
  const BeamSettings settings_;
  const int64_t max_tokens_;
  const std::vector<int32_t> eos_ids_;
  int64_t num_candidates_;
  int64_t num_tokens_ = 0;
  at::Tensor scores_;           // fp32 [D, beams]
  at::Tensor finished_scores_;  // fp32 [D, beams], by length
  at::Tensor is_finished_;      // bool [D, beams]: whether there is an answer with that score
  at::Tensor may_improve_;      // bool [D, 1]
  std::vector<std::vector<int32_t>> living_, finished_;  // [D * beams]
  std::vector<int64_t> parents_;                         // [D * beams]
};

}  // namespace strata::generate
