// Operators of libtorch that only GPUs have, or have in another form, from their definitions:
// products of 16 bits summed into fp32, LayerNorm whose statistics are fp32 whatever the type of x.
// Attention is in attention_operators.cpp.
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

using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

ThreeTensors layer_norm(const Tensor& x, at::IntArrayRef shape, const std::optional<Tensor>& weight,
                        const std::optional<Tensor>& bias, double eps) {
  TORCH_CHECK(weight->scalar_type() == x.scalar_type() && bias->scalar_type() == x.scalar_type());
  Call call("native_layer_norm");
  const auto [y, mean, rstd] = at::native_layer_norm(call.in_fp32(x), shape, call.in_fp32(*weight),
                                                     call.in_fp32(*bias), eps);
  return {call.out(y, x.scalar_type()), call.out(mean, at::kFloat), call.out(rstd, at::kFloat)};
}

ThreeTensors layer_norm_backward(const Tensor& dy, const Tensor& x, at::IntArrayRef shape,
                                 const Tensor& mean, const Tensor& rstd,
                                 const std::optional<Tensor>& weight,
                                 const std::optional<Tensor>& bias, std::array<bool, 3> wanted) {
  TORCH_CHECK(mean.scalar_type() == at::kFloat && rstd.scalar_type() == at::kFloat);
  TORCH_CHECK(weight->scalar_type() == x.scalar_type() && bias->scalar_type() == x.scalar_type());
  Call call("native_layer_norm's gradient");
  const auto [dx, dweight, dbias] = at::native_layer_norm_backward(
      call.in_fp32(dy), call.in_fp32(x), shape, call.in_fp32(mean), call.in_fp32(rstd),
      call.in_fp32(*weight), call.in_fp32(*bias), wanted);
  const auto out = [&](const Tensor& t) {
    return t.defined() ? call.out(t, x.scalar_type()) : Tensor();
  };
  return {out(dx), out(dweight), out(dbias)};
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
  install("native_layer_norm", TORCH_FN(layer_norm));
  install("native_layer_norm_backward", TORCH_FN(layer_norm_backward));
}

}  // namespace emulated_gpu
