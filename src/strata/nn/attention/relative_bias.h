// T5's bias of attention by relative position: a trained number for each bucket of distances and
// each head, spread out to a table over distances. Owns: the buckets and the autograd function.
// Never: attention itself. Source: transformers modeling_t5.py, _relative_position_bucket.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"

namespace strata::nn {

struct RelativeBuckets {
  int64_t count = 32;
  int64_t max_distance = 128;   // from here on all distances share the last bucket
  bool both_directions = true;  // false: keys after the query share bucket 0
};

// The bucket of a key at `distance` = its position - the query's.
int64_t bucket_of(int64_t distance, const RelativeBuckets& buckets);

class RelativeBias {
 public:
  // `path`: the embedding's module path.
  RelativeBias(const std::string& path, const RelativeBuckets& buckets, int64_t num_heads,
               at::ScalarType storage);

  Parameter& weight() { return weight_; }
  const Parameter& weight() const { return weight_; }

  // fp32 [heads, 2 reach + 1]: the bias of distances -reach .. reach. The result requires grad if
  // `anchor` does and the weight trains; only then the weight's gradient is written.
  at::Tensor table(const at::Tensor& anchor, int64_t reach);

 private:
  RelativeBuckets buckets_;
  Parameter weight_;  // [buckets, heads]
};

}  // namespace strata::nn
