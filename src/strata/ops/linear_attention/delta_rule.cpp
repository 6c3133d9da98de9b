// The delta rule: checks. The kernels are in delta_rule_cpu.cpp and delta_gradient_cpu.cpp.
#include "strata/ops/linear_attention/delta_rule.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "strata/ops/check.h"
#include "strata/ops/linear_attention/delta_kernel.h"

namespace strata::ops {
namespace {

constexpr const char* kOp = "delta_rule";

// Their fp32 is kept alive by the caller.
cpu::DeltaArguments checked_arguments(const at::Tensor& qkv, const at::Tensor& g,
                                      const at::Tensor& beta, const DeltaShape& s,
                                      const ChunkLanes& lanes) {
  const int64_t tokens = qkv.size(0);
  check_shape(kOp, "qkv", qkv, {tokens, 2 * s.key_channels() + s.value_channels()});
  check_shape(kOp, "g", g, {tokens, s.num_value_heads});
  check_shape(kOp, "beta", beta, {tokens, s.num_value_heads});
  if (lanes.chunk_size > cpu::kMostChunkTokens) {
    throw InternalError("{}: found chunks of {} tokens, expected at most {}", kOp, lanes.chunk_size,
                        cpu::kMostChunkTokens);
  }
  check_shape(kOp, "source", lanes.source, {lanes.num_places()});
  check_shape(kOp, "keeps", lanes.keeps, {lanes.num_lanes, lanes.num_chunks});
  for (const at::Tensor& x : {qkv, g, beta}) check_device_or_plan(kOp, x);
  const bool has_data = !qkv.is_meta();
  return {.type = element_of(kOp, "qkv", qkv),
          .qkv = has_data ? qkv.const_data_ptr() : nullptr,
          .g = has_data ? g.const_data_ptr<float>() : nullptr,
          .beta = has_data ? beta.const_data_ptr<float>() : nullptr,
          .key_heads = s.num_key_heads,
          .value_heads = s.num_value_heads,
          .key_dim = s.key_dim,
          .value_dim = s.value_dim,
          .tokens = tokens,
          .lanes = lanes.num_lanes,
          .chunks = lanes.num_chunks,
          .chunk_size = lanes.chunk_size,
          .source = has_data ? lanes.source.const_data_ptr<int64_t>() : nullptr,
          .keeps = has_data ? lanes.keeps.const_data_ptr<float>() : nullptr};
}

at::Tensor in_fp32(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

}  // namespace

at::Tensor delta_rule(const at::Tensor& qkv, const at::Tensor& g, const at::Tensor& beta,
                      const DeltaShape& shape, const ChunkLanes& lanes) {
  const at::Tensor rows = qkv.contiguous(), rates = in_fp32(beta), decays = in_fp32(g);
  const cpu::DeltaArguments a = checked_arguments(rows, decays, rates, shape, lanes);
  const at::Tensor out = at::empty({a.tokens, shape.value_channels()}, qkv.options());
  if (!qkv.is_meta()) cpu::delta_rule(a, out.mutable_data_ptr());
  return out;
}

DeltaRuleGradients delta_rule_backward(const at::Tensor& dout, const at::Tensor& qkv,
                                       const at::Tensor& g, const at::Tensor& beta,
                                       const DeltaShape& shape, const ChunkLanes& lanes) {
  const at::Tensor rows = qkv.contiguous(), rates = in_fp32(beta), decays = in_fp32(g);
  const cpu::DeltaArguments a = checked_arguments(rows, decays, rates, shape, lanes);
  check_shape(kOp, "dout", dout, {a.tokens, shape.value_channels()});
  check_type(kOp, "dout", dout, qkv.scalar_type());
  const at::Tensor drows = dout.contiguous();
  DeltaRuleGradients d{at::empty_like(rows), at::empty_like(decays), at::empty_like(rates)};
  const int64_t threads = std::clamp<int64_t>(a.tasks(), 1, at::get_num_threads());
  const at::Tensor workspace = at::empty({threads * cpu::delta_workspace(a)}, decays.options());
  if (!qkv.is_meta()) {
    cpu::delta_rule_backward(a, drows.const_data_ptr(), workspace.mutable_data_ptr<float>(),
                             {.dqkv = d.dqkv.mutable_data_ptr(),
                              .dg = d.dg.mutable_data_ptr<float>(),
                              .dbeta = d.dbeta.mutable_data_ptr<float>()});
  }
  d.dg = d.dg.to(g.scalar_type());
  d.dbeta = d.dbeta.to(beta.scalar_type());
  return d;
}

}  // namespace strata::ops
