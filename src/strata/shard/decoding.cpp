#include "strata/shard/decoding.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/libtorch/parallel_for.h"
#include "strata/libtorch/planned_device.h"
#include "strata/shard/loading.h"

namespace strata::shard {
namespace {

constexpr int64_t kOfTask = int64_t{1} << 15;  // elements, at least

}  // namespace

int64_t decoding_buffer_numel(const at::Tensor& out) {
  if (out.scalar_type() == at::kFloat && !is_for_cuda(out)) return 0;
  return std::min(out.numel(), kReadAtOnce);
}

void decode_into(const at::Tensor& out, const Decode& decode,
                 const std::function<void(int64_t from, int64_t count)>& forget) {
  const int64_t of_buffer = decoding_buffer_numel(out);
  const at::Tensor buffer = of_buffer > 0 ? at::empty({of_buffer}, at::kFloat) : at::Tensor();
  for (int64_t done = 0; done < out.numel(); done += kReadAtOnce) {
    const int64_t count = std::min(kReadAtOnce, out.numel() - done);
    const at::Tensor part = out.narrow(0, done, count);
    const at::Tensor decoded = buffer.defined() ? buffer.narrow(0, 0, count) : part;
    float* values = decoded.mutable_data_ptr<float>();
    at::parallel_for(0, count, kOfTask, [&](int64_t from, int64_t to) {
      decode(done + from, {values + from, static_cast<size_t>(to - from)});
    });
    if (buffer.defined()) part.copy_(decoded);
    forget(done, count);
  }
}

}  // namespace strata::shard
