#include "strata/ops/attention/attention_chunks.h"

#include <algorithm>

namespace strata::ops {
namespace {

// Queries [first, first + count) of document d.
AttentionChunk some_queries(const BiasedAttentionOptions& o, size_t d, int64_t first,
                            int64_t count) {
  int64_t begin = 0, end = o.key_offsets[d + 1] - o.key_offsets[d];
  if (o.causal) end = std::min(end, first + count + o.key_lead);
  if (!o.causal && o.window > 0) end = std::min(end, first + count + o.key_lead + o.window - 1);
  // Dropout counts its keys from the document's first.
  if (o.window > 0 && o.dropout == 0) {
    begin = std::max<int64_t>(0, first + o.key_lead + 1 - o.window);
  }
  const int64_t query = o.offsets[d] + first, key = o.key_offsets[d];
  return {.offsets = {query, query + count},
          .key_offsets = {key + begin, key + end},
          .key_lead = o.key_lead + first - begin,
          .queries = count,
          .keys = end - begin};
}

}  // namespace

std::vector<AttentionChunk> attention_chunks(const BiasedAttentionOptions& o, int64_t heads,
                                             int64_t most_scores) {
  std::vector<AttentionChunk> chunks;
  bool is_open = false;  // the last chunk may take another document
  for (size_t d = 0; d + 1 < o.offsets.size(); ++d) {
    const int64_t queries = o.offsets[d + 1] - o.offsets[d];
    const int64_t keys = o.key_offsets[d + 1] - o.key_offsets[d];
    if (heads * queries * keys > most_scores) {
      const int64_t count = std::max<int64_t>(1, most_scores / (heads * keys));
      for (int64_t first = 0; first < queries; first += count) {
        chunks.push_back(some_queries(o, d, first, std::min(count, queries - first)));
      }
      is_open = false;
      continue;
    }
    if (is_open) {
      AttentionChunk grown = chunks.back();
      grown.offsets.push_back(o.offsets[d + 1]);
      grown.key_offsets.push_back(o.key_offsets[d + 1]);
      grown.queries = std::max(grown.queries, queries);
      grown.keys = std::max(grown.keys, keys);
      if (grown.num_scores(heads) <= most_scores) {
        chunks.back() = std::move(grown);
        continue;
      }
    }
    chunks.push_back({.offsets = {o.offsets[d], o.offsets[d + 1]},
                      .key_offsets = {o.key_offsets[d], o.key_offsets[d + 1]},
                      .key_lead = o.key_lead,
                      .queries = queries,
                      .keys = keys});
    is_open = true;
  }
  return chunks;
}

bool share_keys(const std::vector<AttentionChunk>& chunks, const BiasedAttentionOptions& options) {
  size_t documents = 0;
  for (const AttentionChunk& chunk : chunks) documents += chunk.offsets.size() - 1;
  return documents + 1 > options.offsets.size();
}

}  // namespace strata::ops
