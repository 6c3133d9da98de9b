// Operators of libtorch that only GPUs have, from their definitions: products of 16 bits summed
// into fp32. Attention is in attention_operators.cpp.
#include <ATen/ATen.h>
#include <torch/library.h>

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

}  // namespace

void install_own_operators(torch::Library& library, std::set<std::string>& installed) {
  const auto install = [&](const char* name, auto function) {
    library.impl(name, std::move(function));
    installed.insert(std::string("aten::") + name);
  };
  install("mm.dtype_out", TORCH_FN(mm_into));
  install("addmm.dtype_out", TORCH_FN(addmm_into));
  install("bmm.dtype", TORCH_FN(bmm_into));
}

}  // namespace emulated_gpu
