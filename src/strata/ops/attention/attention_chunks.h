// How attention whose scores exist in memory is cut so that few exist at once: documents side by
// side, or some queries of a long one. Owns: the cuts. Never: what is computed.
#pragma once

#include <cstdint>
#include <vector>

#include "strata/ops/attention/biased_attention.h"

namespace strata::ops {

// What is computed at once: whole documents, or queries of one with the keys that they may see.
struct AttentionChunk {
  std::vector<int64_t> offsets, key_offsets;  // tokens of q, and of k and v; the first may not be 0
  int64_t key_lead;                           // as in the options, among these keys
  int64_t queries, keys;                      // of the longest document

  int64_t num_scores(int64_t heads) const {
    return static_cast<int64_t>(offsets.size() - 1) * heads * queries * keys;
  }
};

// Ascending; each token of q is in one of them. At most `most_scores` scores at once, padding
// counted, except for those of one query.
std::vector<AttentionChunk> attention_chunks(const BiasedAttentionOptions& options, int64_t heads,
                                             int64_t most_scores);
// Whether queries of one document are in several of them, which then share keys.
bool share_keys(const std::vector<AttentionChunk>& chunks, const BiasedAttentionOptions& options);

}  // namespace strata::ops
