// Operators of libtorch that only GPUs have, from their definitions: products of 16 bits summed
// into fp32, FlashAttention and the memory-efficient attention over documents of different lengths.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "attention_definition.h"
#include "call.h"
#include "operators.h"

namespace emulated_gpu {
namespace {

using at::Tensor;

Tensor& mm_into(const Tensor& a, const Tensor& b, at::ScalarType type, Tensor& out) {
  TORCH_CHECK(out.scalar_type() == type && a.scalar_type() == b.scalar_type());
  Call call("mm into another type");
  call.into(out, at::mm(call.in_fp32(a), call.in_fp32(b)));
  return out;
}

Tensor& addmm_into(const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType type,
                   const at::Scalar& beta, const at::Scalar& alpha, Tensor& out) {
  TORCH_CHECK(out.scalar_type() == type && a.scalar_type() == b.scalar_type());
  Call call("addmm into another type");
  call.into(out, at::addmm(call.in_fp32(self), call.in_fp32(a), call.in_fp32(b), beta, alpha));
  return out;
}

Tensor bmm_into(const Tensor& a, const Tensor& b, at::ScalarType type) {
  Call call("bmm into another type");
  return call.out(at::bmm(call.in_fp32(a), call.in_fp32(b)), type);
}

Documents documents_of(Call& call, const Tensor& query_offsets, const Tensor& key_offsets) {
  TORCH_CHECK(query_offsets.scalar_type() == at::kInt && key_offsets.scalar_type() == at::kInt);
  const Tensor q = call.in(query_offsets), k = call.in(key_offsets);
  const int* from_q = q.const_data_ptr<int>();
  const int* from_k = k.const_data_ptr<int>();
  Documents documents;
  for (int64_t d = 0; d + 1 < q.numel(); ++d) {
    documents.push_back(
        {from_q[d], from_q[d + 1] - from_q[d], from_k[d], from_k[d + 1] - from_k[d]});
  }
  return documents;
}

using Offsets = std::optional<Tensor>;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Offsets& query_offsets,
    const Offsets& key_offsets, c10::SymInt, c10::SymInt, double, bool is_causal, bool,
    std::optional<double> scale, std::optional<c10::SymInt>, std::optional<c10::SymInt>,
    const std::optional<Tensor>&, const std::optional<Tensor>&) {
  TORCH_CHECK(q.dim() == 3 && q.size(2) % 8 == 0 && q.scalar_type() != at::kFloat && is_causal &&
              q.stride(-1) == 1 && k.stride(-1) == 1 && v.stride(-1) == 1);
  Call call("FlashAttention");
  const Attended all =
      attend({call.in_fp32(q), call.in_fp32(k), call.in_fp32(v)},
             documents_of(call, *query_offsets, *key_offsets), *scale, Mask::kCausalFromTheEnd);
  const Tensor random_state = call.out(at::zeros({2}), at::kUInt64);
  return {call.out(at::cat(all.out), q.scalar_type()), call.out(at::cat(all.lse, 1), at::kFloat),
          random_state, call.out(at::zeros({}), at::kUInt64), at::empty({0}, q.options())};
}

std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(
    const Tensor& out_gradient, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& out, const Tensor& lse, const Tensor& query_offsets, const Tensor& key_offsets,
    c10::SymInt, c10::SymInt, double dropout, bool, const Tensor&, const Tensor&,
    std::optional<double> scale, std::optional<c10::SymInt>, std::optional<c10::SymInt>) {
  // Without dropout nothing looks at the state of its random numbers.
  TORCH_CHECK(dropout == 0 && lse.size(0) == q.size(1) && lse.size(1) == q.size(0));
  Call call("FlashAttention's gradient");
  const Gradients d =
      gradients(call.in_fp32(out_gradient), {call.in_fp32(q), call.in_fp32(k), call.in_fp32(v)},
                call.in_fp32(out), call.in_fp32(lse),
                documents_of(call, query_offsets, key_offsets), *scale, Mask::kCausalFromTheEnd);
  const at::ScalarType type = q.scalar_type();
  return {call.out(d.q, type), call.out(d.k, type), call.out(d.v, type)};
}

// The statistics of the memory-efficient kernel: [documents, H, longest], rounded up, infinite
// beyond a document's end.
constexpr int64_t kLseAlignment = 32;

int64_t lse_length(const c10::SymInt& longest) {
  return (longest.expect_int() + kLseAlignment - 1) / kLseAlignment * kLseAlignment;
}

Mask mask_of(int64_t custom_mask) {
  TORCH_CHECK(custom_mask == 1 || custom_mask == 2);
  return custom_mask == 2 ? Mask::kCausalFromTheEnd : Mask::kCausalFromTheStart;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt> efficient_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>&,
    const Offsets& query_offsets, const Offsets& key_offsets, std::optional<c10::SymInt> longest_q,
    std::optional<c10::SymInt> longest_k, double, int64_t custom_mask, bool wants_lse,
    std::optional<double> scale, const std::optional<Tensor>&, std::optional<int64_t>) {
  TORCH_CHECK(q.dim() == 4 && q.size(0) == 1 && q.size(2) == k.size(2));
  Call call("memory-efficient attention");
  const Attended all =
      attend({call.in_fp32(q)[0], call.in_fp32(k)[0], call.in_fp32(v)[0]},
             documents_of(call, *query_offsets, *key_offsets), *scale, mask_of(custom_mask));
  const auto documents = static_cast<int64_t>(all.lse.size());
  const Tensor lse =
      at::full({documents, q.size(2), wants_lse ? lse_length(*longest_q) : 0}, INFINITY);
  for (int64_t d = 0; wants_lse && d < documents; ++d) {
    const Tensor& of_document = all.lse[static_cast<size_t>(d)];
    lse[d].narrow(1, 0, of_document.size(1)).copy_(of_document);
  }
  const Tensor seed = call.out(at::zeros({}), at::kLong);
  return {call.out(at::cat(all.out).unsqueeze(0), q.scalar_type()),
          call.out(lse, at::kFloat),
          seed,
          seed,
          *longest_q,
          *longest_k};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention_backward(
    const Tensor& out_gradient, const Tensor& q, const Tensor& k, const Tensor& v,
    const std::optional<Tensor>&, const Tensor& out_of_forward, const Offsets& query_offsets,
    const Offsets& key_offsets, c10::SymInt longest_q, c10::SymInt, const Tensor& lse, double,
    const Tensor&, const Tensor&, int64_t custom_mask, bool, std::optional<double> scale,
    std::optional<int64_t>, std::optional<int64_t>, bool) {
  TORCH_CHECK(lse.size(2) == lse_length(longest_q));
  Call call("memory-efficient attention's gradient");
  const Documents documents = documents_of(call, *query_offsets, *key_offsets);
  const Tensor padded_lse = call.in_fp32(lse);
  std::vector<Tensor> lse_of_documents;
  for (const Document& d : documents) {
    const auto at = static_cast<int64_t>(lse_of_documents.size());
    lse_of_documents.push_back(padded_lse[at].narrow(1, 0, d.queries));
  }
  const Gradients d = gradients(call.in_fp32(out_gradient)[0],
                                {call.in_fp32(q)[0], call.in_fp32(k)[0], call.in_fp32(v)[0]},
                                call.in_fp32(out_of_forward)[0], at::cat(lse_of_documents, 1),
                                documents, *scale, mask_of(custom_mask));
  const auto out = [&](const Tensor& x) { return call.out(x.unsqueeze(0), q.scalar_type()); };
  return {out(d.q), out(d.k), out(d.v), Tensor()};
}

}  // namespace

void install_own_operators(torch::Library& library, std::set<std::string>& installed) {
  const auto install = [&](const char* name, auto function) {
    library.impl(name, std::move(function));
    installed.insert(std::string("aten::") + name);
  };
  install("mm.dtype_out", TORCH_FN(mm_into));
  install("addmm.dtype_out", TORCH_FN(addmm_into));
  install("bmm.dtype", TORCH_FN(bmm_into));
  install("_flash_attention_forward", TORCH_FN(flash_attention));
  install("_flash_attention_backward", TORCH_FN(flash_attention_backward));
  install("_efficient_attention_forward", TORCH_FN(efficient_attention));
  install("_efficient_attention_backward", TORCH_FN(efficient_attention_backward));
}

}  // namespace emulated_gpu
