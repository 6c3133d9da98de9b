#include "strata/shard/fp8_loading.h"

#include <ATen/ATen.h>

#include "strata/base/file.h"
#include "strata/hf/formats/torch_types.h"
#include "strata/shard/decoding.h"
#include "strata/shard/loading.h"
#include "strata/shard/storage_type.h"

namespace strata::shard {

void read_fp8(const hf::ModelFolder& folder, const hf::Fp8Weight& weight, int64_t begin,
              const at::Tensor& out) {
  const std::span<const std::byte> codes = folder.bytes(*weight.codes);
  decode_into(
      out,
      [&](int64_t from, std::span<float> values) {
        hf::read_fp8(folder, weight, begin + from, values);
      },
      [&](int64_t from, int64_t count) {
        forget_pages(codes.subspan(static_cast<size_t>(begin + from), static_cast<size_t>(count)));
      });
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
