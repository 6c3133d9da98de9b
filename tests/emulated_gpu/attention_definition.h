// Attention by its definition, in fp32 on the host. Owns: nothing. Never: layouts of an
// operator, memory of the GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace emulated_gpu {

// One document's share of a micro-batch: rows of queries and of keys.
struct Document {
  int64_t query, queries, key, keys;
};
using Documents = std::vector<Document>;

// Where the diagonal of the causal mask begins, if there is one, and how many of the last tokens
// that a query could see it sees; 0: all. Without a causal mask as many behind it, too.
struct Mask {
  enum { kNone, kFromTheStart, kFromTheEnd } causal = kFromTheStart;
  int64_t window = 0;
};

struct Attended {
  std::vector<at::Tensor> out, lse;  // by document: [queries, H, D], [H, queries]
};
struct Inputs {
  at::Tensor q, k, v;  // [T, H, D], [T, Hkv, D]
};
Attended attend(const Inputs& x, const Documents& documents, double scale, const Mask& mask);

struct Gradients {
  at::Tensor q, k, v;
};
// From what the forward pass kept, as the kernels do it: a wrong `out` ([T, H, D]) or `lse`
// ([H, T]) makes wrong gradients.
Gradients gradients(const at::Tensor& out_gradient, const Inputs& x, const at::Tensor& out,
                    const at::Tensor& lse, const Documents& documents, double scale,
                    const Mask& mask);

}  // namespace emulated_gpu
