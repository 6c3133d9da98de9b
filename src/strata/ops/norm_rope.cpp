// RMSNorm of heads and their rotation: checks and choice of the device. The kernels are in
// norm_rope_cpu.cpp and norm_rope_cuda.cu.
#include "strata/ops/norm_rope.h"

#include <ATen/ATen.h>

#include "strata/base/activity_timer.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {

namespace {

constexpr const char* kOp = "norm_rope";

struct Tables {
  const at::Tensor& cos;
  const at::Tensor& sin;
};

NormRopeHeads checked_heads(const char* argument, const HeadsToTurn& of, const at::Tensor& like,
                            int64_t channels) {
  const at::Tensor& x = of.x;
  if (x.dim() != 2 || x.size(0) != like.size(0) || x.size(1) % channels != 0) {
    throw InternalError("norm_rope: found {} of shape [{}], expected [{}, a multiple of {}]",
                        argument, fmt::join(x.sizes(), ", "), like.size(0), channels);
  }
  check_type(kOp, argument, x, like.scalar_type());
  check_contiguous(kOp, argument, x);
  check_shape(kOp, "weight", of.weight, {channels});
  check_contiguous(kOp, "weight", of.weight);
  return {.x = x.is_meta() ? nullptr : x.const_data_ptr(),
          .weight = x.is_meta() ? nullptr : of.weight.const_data_ptr(),
          .weight_type = element_of(kOp, "weight", of.weight),
          .rstd = nullptr,
          .heads = x.size(1) / channels};
}

NormRopeArguments checked_arguments(const HeadsToTurn& queries, const HeadsToTurn& keys,
                                    const Tables& tables, RmsNormKind kind) {
  check_device_or_plan(kOp, queries.x);
  check_device_or_plan(kOp, keys.x);
  const int64_t channels = queries.weight.numel();
  if (channels == 0 || channels % 2 != 0) {
    throw InternalError("norm_rope: found {} channels, expected an even number", channels);
  }
  NormRopeArguments a{.type = element_of(kOp, "queries", queries.x),
                      .kind = kind,
                      .queries = checked_heads("queries", queries, queries.x, channels),
                      .keys = checked_heads("keys", keys, queries.x, channels),
                      .cos = nullptr,
                      .sin = nullptr,
                      .tokens = queries.x.size(0),
                      .channels = channels};
  for (const at::Tensor* table : {&tables.cos, &tables.sin}) {
    const char* argument = table == &tables.cos ? "cos" : "sin";
    check_shape(kOp, argument, *table, {a.tokens, channels / 2});
    check_type(kOp, argument, *table, at::kFloat);
    check_contiguous(kOp, argument, *table);
  }
  if (queries.x.is_meta()) return a;
  a.cos = tables.cos.const_data_ptr<float>();
  a.sin = tables.sin.const_data_ptr<float>();
  return a;
}

TurnedHeads room_for(const HeadsToTurn& of) {
  return {at::empty_like(of.x),
          at::empty({of.x.numel() / of.weight.numel()}, of.x.options().dtype(at::kFloat))};
}

void check_gradient(const HeadsToTurn& of, const HeadsGradient& g) {
  check_shape(kOp, "dy", g.dy, of.x.sizes());
  check_type(kOp, "dy", g.dy, of.x.scalar_type());
  check_contiguous(kOp, "dy", g.dy);
  check_shape(kOp, "rstd", g.rstd, {of.x.numel() / of.weight.numel()});
  check_type(kOp, "rstd", g.rstd, at::kFloat);
  check_contiguous(kOp, "rstd", g.rstd);
  if (!g.dweight.defined()) return;
  check_shape(kOp, "dweight", g.dweight, of.weight.sizes());
  check_contiguous(kOp, "dweight", g.dweight);
}

NormRopeGradients raw_gradients(const HeadsGradient& g, const at::Tensor& dx) {
  NormRopeGradients raw{.dy = g.dy.const_data_ptr(),
                        .dx = dx.mutable_data_ptr(),
                        .dweight = nullptr,
                        .dweight_type = Element::kFloat,
                        .beta = g.beta};
  if (!g.dweight.defined()) return raw;
  raw.dweight = g.dweight.mutable_data_ptr();
  raw.dweight_type = element_of(kOp, "dweight", g.dweight);
  return raw;
}

// Room for the sums of the blocks of both; undefined where no weight trains.
at::Tensor partials_for(const HeadsToTurn& queries, const HeadsGradient& of_queries,
                        const HeadsToTurn& keys, const HeadsGradient& of_keys) {
  const bool is_wanted = of_queries.dweight.defined() || of_keys.dweight.defined();
  if (!is_wanted || !is_for_cuda(queries.x)) return {};
  const int64_t channels = queries.weight.numel();
  const auto blocks = [&](const HeadsToTurn& of) {
    return cuda::rms_norm_partials(of.x.numel() / channels, channels);
  };
  return at::empty({blocks(queries) + blocks(keys), channels}, of_queries.rstd.options());
}

}  // namespace

bool can_norm_rope(const at::Tensor& x, int64_t channels) {
  return channels > 0 && channels % 2 == 0 && (!is_for_cuda(x) || cuda::fits_norm_rope(channels));
}

TurnedQueriesAndKeys norm_rope(const HeadsToTurn& queries, const HeadsToTurn& keys,
                               const at::Tensor& cos, const at::Tensor& sin, double eps,
                               RmsNormKind kind) {
  NormRopeArguments a = checked_arguments(queries, keys, {cos, sin}, kind);
  TurnedQueriesAndKeys result{room_for(queries), room_for(keys)};
  if (queries.x.is_meta()) return result;
  const ActivityTimer timer(Activity::kElementWise);
  a.queries.rstd = result.queries.rstd.mutable_data_ptr<float>();
  a.keys.rstd = result.keys.rstd.mutable_data_ptr<float>();
  void* y[] = {result.queries.y.mutable_data_ptr(), result.keys.y.mutable_data_ptr()};
  if constexpr (kHasCuda) {
    if (queries.x.is_cuda()) {
      cuda::norm_rope(a, y[0], y[1], eps, cuda::current_stream(queries.x));
      return result;
    }
  }
  cpu::norm_rope(a, y[0], y[1], eps);
  return result;
}

QueriesAndKeys norm_rope_backward(const HeadsToTurn& queries, const HeadsGradient& of_queries,
                                  const HeadsToTurn& keys, const HeadsGradient& of_keys,
                                  const at::Tensor& cos, const at::Tensor& sin, RmsNormKind kind) {
  NormRopeArguments a = checked_arguments(queries, keys, {cos, sin}, kind);
  check_gradient(queries, of_queries);
  check_gradient(keys, of_keys);
  QueriesAndKeys dx{at::empty_like(queries.x), at::empty_like(keys.x)};
  const at::Tensor partials = partials_for(queries, of_queries, keys, of_keys);
  if (queries.x.is_meta()) return dx;
  const ActivityTimer timer(Activity::kElementWise);
  // Only read.
  a.queries.rstd = const_cast<float*>(of_queries.rstd.const_data_ptr<float>());
  a.keys.rstd = const_cast<float*>(of_keys.rstd.const_data_ptr<float>());
  const NormRopeGradients raw[] = {raw_gradients(of_queries, dx.queries),
                                   raw_gradients(of_keys, dx.keys)};
  if constexpr (kHasCuda) {
    if (queries.x.is_cuda()) {
      cuda::norm_rope_backward(a, raw[0], raw[1],
                               partials.defined() ? partials.mutable_data_ptr<float>() : nullptr,
                               cuda::current_stream(queries.x));
      return dx;
    }
  }
  cpu::norm_rope_backward(a, raw[0], raw[1]);
  return dx;
}

}  // namespace strata::ops
