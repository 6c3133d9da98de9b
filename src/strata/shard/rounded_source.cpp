#include "strata/shard/rounded_source.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace strata::shard {

int64_t rounded_at_once(const at::Tensor& out) { return std::min(int64_t{1} << 19, out.numel()); }

Source rounded_source(at::ScalarType type, Source source) {
  return [type, source = std::move(source)](const nn::Parameter& parameter, int64_t begin,
                                            const at::Tensor& out) {
    if (out.scalar_type() == type || parameter.keeps_type()) return source(parameter, begin, out);
    // Piece by piece: a buffer of the whole embedding would be in no plan.
    const at::Tensor rounded = at::empty({rounded_at_once(out)}, out.options().dtype(type));
    for (int64_t done = 0; done < out.numel(); done += rounded.numel()) {
      const int64_t count = std::min(rounded.numel(), out.numel() - done);
      const at::Tensor piece = rounded.narrow(0, 0, count);
      if (!source(parameter, begin + done, piece)) return false;
      out.narrow(0, done, count).copy_(piece);
    }
    return true;
  };
}

}  // namespace strata::shard
