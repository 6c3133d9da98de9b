#include "strata/ops/quant/int_groups.h"

namespace strata::ops::quant {

IntGroups int_groups_of(const Format& format, int64_t rows, int64_t columns, const uint8_t* bytes) {
  if (format.kind != Kind::kInts) return {};
  const Layout layout = layout_of(format, rows, columns);
  const IntParts& parts = format.ints;
  return {
      .bits = static_cast<int>(parts.bits),
      .scale_type = parts.scale_type,
      .scales = bytes + layout.scales,
      .zeros = parts.has_zeros ? reinterpret_cast<const int8_t*>(bytes + layout.zeros) : nullptr,
      .order = parts.has_order ? reinterpret_cast<const int32_t*>(bytes + layout.order) : nullptr,
      .group = format.block,
      .groups = (columns + format.block - 1) / format.block,
      .row_bytes = (columns * parts.bits + 7) / 8};
}

}  // namespace strata::ops::quant
