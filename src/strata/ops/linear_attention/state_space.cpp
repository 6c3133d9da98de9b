// The state space: checks. The kernels are in space_cpu.cpp and space_gradient_cpu.cpp.
#include "strata/ops/linear_attention/state_space.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "strata/ops/check.h"
#include "strata/ops/linear_attention/space_kernel.h"

namespace strata::ops {
namespace {

constexpr const char* kOp = "state_space";

const float* numbers(const at::Tensor& x) {
  return x.is_meta() ? nullptr : x.const_data_ptr<float>();
}

StateSpaceInputs contiguous(const StateSpaceInputs& in) {
  return {in.xbc.contiguous(), in.steps.contiguous(), in.rate.contiguous(), in.skip.contiguous()};
}

cpu::SpaceArguments checked_arguments(const StateSpaceInputs& in, const StateSpaceShape& s,
                                      const ChunkLanes& lanes) {
  const int64_t tokens = in.xbc.size(0);
  check_shape(kOp, "xbc", in.xbc, {tokens, s.channels() + 2 * s.group_channels()});
  check_shape(kOp, "steps", in.steps, {tokens, s.num_heads});
  check_shape(kOp, "rate", in.rate, {s.num_heads});
  check_shape(kOp, "skip", in.skip, {s.num_heads});
  if (lanes.chunk_size > cpu::kMostChunkTokens) {
    throw InternalError("{}: found chunks of {} tokens, expected at most {}", kOp, lanes.chunk_size,
                        cpu::kMostChunkTokens);
  }
  check_shape(kOp, "source", lanes.source, {lanes.num_places()});
  check_shape(kOp, "keeps", lanes.keeps, {lanes.num_lanes, lanes.num_chunks});
  for (const at::Tensor& x : {in.steps, in.rate, in.skip}) check_type(kOp, "fp32", x, at::kFloat);
  check_device_or_plan(kOp, in.xbc);
  const bool has_data = !in.xbc.is_meta();
  return {.type = element_of(kOp, "xbc", in.xbc),
          .xbc = has_data ? in.xbc.const_data_ptr() : nullptr,
          .steps = numbers(in.steps),
          .rate = numbers(in.rate),
          .skip = numbers(in.skip),
          .heads = s.num_heads,
          .head_dim = s.head_dim,
          .groups = s.num_groups,
          .state_dim = s.state_dim,
          .tokens = tokens,
          .lanes = lanes.num_lanes,
          .chunks = lanes.num_chunks,
          .chunk_size = lanes.chunk_size,
          .source = has_data ? lanes.source.const_data_ptr<int64_t>() : nullptr,
          .keeps = numbers(lanes.keeps)};
}

}  // namespace

at::Tensor state_space(const StateSpaceInputs& inputs, const StateSpaceShape& shape,
                       const ChunkLanes& lanes) {
  const StateSpaceInputs in = contiguous(inputs);
  const cpu::SpaceArguments a = checked_arguments(in, shape, lanes);
  const at::Tensor out = at::empty({a.tokens, shape.channels()}, in.xbc.options());
  if (!in.xbc.is_meta()) cpu::state_space(a, out.mutable_data_ptr());
  return out;
}

StateSpaceGradients state_space_backward(const at::Tensor& dout, const StateSpaceInputs& inputs,
                                         const StateSpaceShape& shape, const ChunkLanes& lanes) {
  const StateSpaceInputs in = contiguous(inputs);
  const cpu::SpaceArguments a = checked_arguments(in, shape, lanes);
  check_shape(kOp, "dout", dout, {a.tokens, shape.channels()});
  check_type(kOp, "dout", dout, in.xbc.scalar_type());
  const at::Tensor drows = dout.contiguous();
  const auto numbers_of = in.steps.options();
  const StateSpaceGradients d{at::empty_like(in.xbc), at::empty_like(in.steps), {}, {}};
  const at::Tensor drates = at::empty({a.lanes, a.heads}, numbers_of);
  const at::Tensor dskips = at::empty({a.lanes, a.heads}, numbers_of);
  const at::Tensor shared =
      at::empty({a.blocks(), a.tokens, 2 * shape.group_channels()}, numbers_of);
  const int64_t threads = std::clamp<int64_t>(a.tasks(), 1, at::get_num_threads());
  const at::Tensor workspace = at::empty({threads * cpu::space_workspace(a)}, numbers_of);
  if (!in.xbc.is_meta()) {
    cpu::state_space_backward(a, drows.const_data_ptr(), workspace.mutable_data_ptr<float>(),
                              {.dxbc = d.dxbc.mutable_data_ptr(),
                               .dsteps = d.dsteps.mutable_data_ptr<float>(),
                               .drate = drates.mutable_data_ptr<float>(),
                               .dskip = dskips.mutable_data_ptr<float>(),
                               .shared = shared.mutable_data_ptr<float>()});
  }
  d.dxbc.narrow(1, shape.channels(), 2 * shape.group_channels())
      .copy_(a.blocks() == 1 ? shared[0] : shared.sum(0));
  return {d.dxbc, d.dsteps, drates.sum(0), dskips.sum(0)};
}

}  // namespace strata::ops
