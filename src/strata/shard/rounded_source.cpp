#include "strata/shard/rounded_source.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace strata::shard {

Source rounded_source(at::ScalarType type, Source source) {
  return [type, source = std::move(source)](const nn::Parameter& parameter, int64_t begin,
                                            const at::Tensor& out) {
    if (out.scalar_type() == type || parameter.is_buffer()) return source(parameter, begin, out);
    // Piece by piece: a buffer of the whole embedding would be in no plan.
    constexpr int64_t kPiece = int64_t{1} << 19;
    const at::Tensor rounded =
        at::empty({std::min(kPiece, out.numel())}, out.options().dtype(type));
    for (int64_t done = 0; done < out.numel(); done += kPiece) {
      const int64_t count = std::min(kPiece, out.numel() - done);
      const at::Tensor piece = rounded.narrow(0, 0, count);
      if (!source(parameter, begin + done, piece)) return false;
      out.narrow(0, done, count).copy_(piece);
    }
    return true;
  };
}

}  // namespace strata::shard
