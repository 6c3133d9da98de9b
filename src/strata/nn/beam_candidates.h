// From the logits of a beam search's living answers to the likeliest continuations of each
// document, with the same memory in the plan as in the run. Never: which of them live on
// (generate/beam_search.h).
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace strata::nn {

// Of each document its `count` likeliest, in order: [D, count].
struct BeamCandidates {
  at::Tensor scores;  // fp32, sums of log-probabilities
  at::Tensor beams;   // int64, which of the document's answers goes on
  at::Tensor tokens;  // int64, with which token
};

// `logits`: fp32 [D * B, vocab], released on the way; `scores`: fp32 [D, B], of the answers so far.
// `exclude` changes log-probabilities [D * B, vocab] in place, where some are not to be; empty:
// nothing.
BeamCandidates beam_candidates(at::Tensor& logits, const at::Tensor& scores, int64_t count,
                               const std::function<void(at::Tensor&)>& exclude);

// Of the host, beside tensors, for the answers of as many documents of that many candidates to
// choose among.
int64_t beam_scratch_bytes(int64_t documents, int64_t choices);

}  // namespace strata::nn
