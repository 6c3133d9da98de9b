#include "strata/shard/int_loading.h"

#include <ATen/ATen.h>

#include "strata/base/file.h"
#include "strata/hf/int_values.h"
#include "strata/shard/decoding.h"
#include "strata/shard/loading.h"

namespace strata::shard {

void read_ints(const hf::ModelFolder& folder, const hf::IntWeight& weight, int64_t begin,
               const at::Tensor& out) {
  const hf::IntValues weights(folder, weight);
  decode_into(
      out, [&](int64_t from, std::span<float> values) { weights.read(begin + from, values); },
      [](int64_t, int64_t) {});
}

void forget_ints(const hf::ModelFolder& folder, const hf::IntWeight& weight) {
  for (const hf::TensorInfo* part : weight.parts()) forget_pages(folder.bytes(*part));
}

void read_ints(const hf::ModelFolder& folder, const hf::IntWeight& weight, int64_t begin,
               hf::DType type, std::span<std::byte> out) {
  const auto numel = static_cast<int64_t>(out.size() / hf::size_of(type));
  read_ints(folder, weight, begin,
            at::from_blob(out.data(), {numel}, scalar_type_of(type, weight.codes->name)));
  forget_ints(folder, weight);
}

}  // namespace strata::shard
