#include "strata/shard/fp8_loading.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "strata/base/file.h"
#include "strata/hf/formats/torch_types.h"
#include "strata/libtorch/planned_device.h"
#include "strata/shard/loading.h"
#include "strata/shard/storage_type.h"

namespace strata::shard {
namespace {

constexpr int64_t kOfTask = int64_t{1} << 15;  // elements, at least

}  // namespace

int64_t fp8_buffer_numel(const at::Tensor& out) {
  if (out.scalar_type() == at::kFloat && !is_for_cuda(out)) return 0;
  return std::min(out.numel(), kReadAtOnce);
}

void read_fp8(const hf::ModelFolder& folder, const hf::Fp8Weight& weight, int64_t begin,
              const at::Tensor& out) {
  const std::span<const std::byte> codes = folder.bytes(*weight.codes);
  const int64_t of_buffer = fp8_buffer_numel(out);
  const at::Tensor buffer = of_buffer > 0 ? at::empty({of_buffer}, at::kFloat) : at::Tensor();
  for (int64_t done = 0; done < out.numel(); done += kReadAtOnce) {
    const int64_t count = std::min(kReadAtOnce, out.numel() - done);
    const at::Tensor part = out.narrow(0, done, count);
    const at::Tensor decoded = buffer.defined() ? buffer.narrow(0, 0, count) : part;
    float* values = decoded.mutable_data_ptr<float>();
    at::parallel_for(0, count, kOfTask, [&](int64_t from, int64_t to) {
      hf::read_fp8(folder, weight, begin + done + from,
                   {values + from, static_cast<size_t>(to - from)});
    });
    if (buffer.defined()) part.copy_(decoded);
    forget_pages(codes.subspan(static_cast<size_t>(begin + done), static_cast<size_t>(count)));
  }
  forget_pages(folder.bytes(*weight.scales));
}

void read_fp8(const hf::ModelFolder& folder, const hf::Fp8Weight& weight, int64_t begin,
              hf::DType type, std::span<std::byte> out) {
  const auto numel = static_cast<int64_t>(out.size() / hf::size_of(type));
  read_fp8(folder, weight, begin,
           at::from_blob(out.data(), {numel}, scalar_type_of(type, weight.codes->name)));
}

hf::DType decoded_type(const hf::ModelFolder& folder) {
  const auto named = hf::dtype_of_torch_dtype(named_type(folder.config()));
  const bool is_one = named == hf::DType::kF32 || named == hf::DType::kF16;
  return is_one ? *named : hf::DType::kBF16;
}

}  // namespace strata::shard
