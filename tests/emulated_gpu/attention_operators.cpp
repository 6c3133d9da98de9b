// FlashAttention and the memory-efficient attention of libtorch over documents of different
// lengths. libtorch's own code runs up to the kernels that it launches: it checks the arguments,
// finds a kernel for them, allocates what that takes and what comes of it. The values are computed
// from the definition.
#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "attention_definition.h"
#include "call.h"
#include "launches.h"
#include "operators.h"

namespace emulated_gpu {
namespace {

using at::Tensor;
using Given = std::optional<Tensor>;
using Number = std::optional<int64_t>;

template <typename Work>
auto without_kernels(const Work& work) {
  const LaunchesLeftOut left_out;
  auto made = work();
  if (left_out.count() == 0) fail("attention: found no kernel that libtorch would launch");
  return made;
}

Documents documents_of(Call& call, const Tensor& query_offsets, const Tensor& key_offsets) {
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

// FlashAttention's window: so many before a query; none after it with a causal mask, else as many.
Mask flash_mask(bool is_causal, Number left, Number right) {
  if (left.has_value() != right.has_value()) fail("FlashAttention: found half a window");
  if (left && *right != (is_causal ? 0 : *left)) {
    fail("FlashAttention: found a window of other tokens before a query than after it");
  }
  return {.causal = is_causal ? Mask::kFromTheEnd : Mask::kNone, .window = left ? *left + 1 : 0};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Given& query_offsets,
    const Given& key_offsets, int64_t longest_q, int64_t longest_k, double dropout, bool is_causal,
    bool wants_mask, std::optional<double> scale, Number left, Number right, const Given& used_keys,
    const Given& slopes) {
  auto made = without_kernels([&] {
    return at::native::_flash_attention_forward(q, k, v, query_offsets, key_offsets, longest_q,
                                                longest_k, dropout, is_causal, wants_mask, scale,
                                                left, right, used_keys, slopes);
  });
  Call call("FlashAttention");
  const Attended all = attend({call.in_fp32(q), call.in_fp32(k), call.in_fp32(v)},
                              documents_of(call, *query_offsets, *key_offsets), *scale,
                              flash_mask(is_causal, left, right));
  call.into(std::get<0>(made), at::cat(all.out));
  call.into(std::get<1>(made), at::cat(all.lse, 1));
  return made;
}

std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(
    const Tensor& out_gradient, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& out, const Tensor& lse, const Tensor& query_offsets, const Tensor& key_offsets,
    int64_t longest_q, int64_t longest_k, double dropout, bool is_causal,
    const Tensor& random_state, const Tensor& unused, std::optional<double> scale, Number left,
    Number right) {
  auto made = without_kernels([&] {
    return at::native::_flash_attention_backward(
        out_gradient, q, k, v, out, lse, query_offsets, key_offsets, longest_q, longest_k, dropout,
        is_causal, random_state, unused, scale, left, right);
  });
  Call call("FlashAttention's gradient");
  const Gradients d = gradients(
      call.in_fp32(out_gradient), {call.in_fp32(q), call.in_fp32(k), call.in_fp32(v)},
      call.in_fp32(out), call.in_fp32(lse), documents_of(call, query_offsets, key_offsets), *scale,
      flash_mask(is_causal, left, right));
  call.into(std::get<0>(made), d.q);
  call.into(std::get<1>(made), d.k);
  call.into(std::get<2>(made), d.v);
  return made;
}

Mask mask_of(int64_t custom_mask, Number window) {
  if (custom_mask == 0) {
    if (window) fail("attention: found a window without a causal mask");
    return {.causal = Mask::kNone};
  }
  if (custom_mask != 1 && custom_mask != 2) fail("attention: found an unknown mask");
  return {.causal = custom_mask == 2 ? Mask::kFromTheEnd : Mask::kFromTheStart,
          .window = window.value_or(0)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt> efficient_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Given& bias,
    const Given& query_offsets, const Given& key_offsets, Number longest_q, Number longest_k,
    double dropout, int64_t mask, bool wants_lse, std::optional<double> scale,
    const Given& used_keys, Number window) {
  auto made = without_kernels([&] {
    return at::native::_efficient_attention_forward(q, k, v, bias, query_offsets, key_offsets,
                                                    longest_q, longest_k, dropout, mask, wants_lse,
                                                    scale, used_keys, window);
  });
  Call call("memory-efficient attention");
  const Attended all =
      attend({call.in_fp32(q)[0], call.in_fp32(k)[0], call.in_fp32(v)[0]},
             documents_of(call, *query_offsets, *key_offsets), *scale, mask_of(mask, window));
  call.into(std::get<0>(made), at::cat(all.out).unsqueeze(0));
  if (!wants_lse) return made;
  // [documents, H, longest, rounded up], infinite beyond a document's end.
  const Tensor lse = at::full(std::get<1>(made).sizes(), INFINITY);
  for (int64_t d = 0; d < lse.size(0); ++d) {
    const Tensor& of_document = all.lse[static_cast<size_t>(d)];
    lse[d].narrow(1, 0, of_document.size(1)).copy_(of_document);
  }
  call.into(std::get<1>(made), lse);
  return made;
}

// [documents, H, rounded up] as [H, T].
Tensor packed_lse(const Tensor& lse, const Documents& documents) {
  std::vector<Tensor> parts;
  for (const Document& d : documents) {
    parts.push_back(lse[static_cast<int64_t>(parts.size())].narrow(1, 0, d.queries));
  }
  return at::cat(parts, 1);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention_backward(
    const Tensor& out_gradient, const Tensor& q, const Tensor& k, const Tensor& v,
    const Given& bias, const Tensor& out, const Given& query_offsets, const Given& key_offsets,
    int64_t longest_q, int64_t longest_k, const Tensor& lse, double dropout, const Tensor& seed,
    const Tensor& offset, int64_t mask, bool wants_bias_gradient, std::optional<double> scale,
    Number splits, Number window, bool is_shared) {
  auto made = without_kernels([&] {
    return at::native::_efficient_attention_backward(
        out_gradient, q, k, v, bias, out, query_offsets, key_offsets, longest_q, longest_k, lse,
        dropout, seed, offset, mask, wants_bias_gradient, scale, splits, window, is_shared);
  });
  Call call("memory-efficient attention's gradient");
  const Documents documents = documents_of(call, *query_offsets, *key_offsets);
  const Gradients d =
      gradients(call.in_fp32(out_gradient)[0],
                {call.in_fp32(q)[0], call.in_fp32(k)[0], call.in_fp32(v)[0]}, call.in_fp32(out)[0],
                packed_lse(call.in_fp32(lse), documents), documents, *scale, mask_of(mask, window));
  call.into(std::get<0>(made), d.q.unsqueeze(0));
  call.into(std::get<1>(made), d.k.unsqueeze(0));
  call.into(std::get<2>(made), d.v.unsqueeze(0));
  return made;
}

}  // namespace

void install_attention(torch::Library& library, std::set<std::string>& installed) {
  const auto install = [&](const char* name, auto function) {
    library.impl(name, std::move(function));
    installed.insert(std::string("aten::") + name);
  };
  install("_flash_attention_forward", TORCH_FN(flash_attention));
  install("_flash_attention_backward", TORCH_FN(flash_attention_backward));
  install("_efficient_attention_forward", TORCH_FN(efficient_attention));
  install("_efficient_attention_backward", TORCH_FN(efficient_attention_backward));
}

}  // namespace emulated_gpu
