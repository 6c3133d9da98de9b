// Names and sizes of the quantised formats. Never: arithmetic.
#include "strata/ops/quant/format.h"

#include <bit>

#include "strata/base/error.h"

namespace strata::ops::quant {
namespace {

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
int64_t round_up(int64_t n, int64_t multiple) { return divide_up(n, multiple) * multiple; }

Layout layout_of_ints(const Format& format, int64_t rows, int64_t columns) {
  Layout layout;
  layout.num_codes = rows * divide_up(columns * format.ints.bits, 8);
  layout.num_scales = rows * divide_up(columns, format.block);
  layout.scales = round_up(layout.num_codes, 4);
  layout.zeros = layout.scales + layout.num_scales * size_bytes(format.ints.scale_type);
  layout.zeros = round_up(layout.zeros, 4);
  layout.order = round_up(layout.zeros + (format.ints.has_zeros ? layout.num_scales : 0), 4);
  layout.total = layout.order + (format.ints.has_order ? 4 * columns : 0);
  layout.nested = layout.mean = layout.total;
  return layout;
}

}  // namespace

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kNf4:
      return "nf4";
    case Kind::kFp4:
      return "fp4";
    case Kind::kMxfp4:
      return "mxfp4";
    case Kind::kFp8:
      return "fp8";
    case Kind::kInts:
      return "integers";
    case Kind::kInt8:
      break;
  }
  return "int8";
}

Kind parse_kind(std::string_view name, std::string_view setting) {
  for (const Kind kind : {Kind::kNf4, Kind::kFp4, Kind::kInt8}) {
    if (name == name_of(kind)) return kind;
  }
  throw ConfigError("{}: found \"{}\", expected nf4, fp4 or int8; choose one of them", setting,
                    name);
}

void check_block(int64_t block, std::string_view setting) {
  if (block >= 32 && block <= 4096 && std::has_single_bit(static_cast<uint64_t>(block))) return;
  throw ConfigError("{}: found {}, expected a power of two from 32 to 4096; choose 64", setting,
                    block);
}

Layout layout_of(const Format& format, int64_t rows, int64_t columns) {
  if (format.kind == Kind::kInts) return layout_of_ints(format, rows, columns);
  const int64_t numel = rows * columns;
  Layout layout;
  if (format.kind == Kind::kInt8) {
    layout.num_codes = numel;
    layout.num_scales = rows;
  } else if (format.kind == Kind::kFp8) {
    layout.num_codes = numel;
    layout.num_scales = divide_up(rows, format.tile_rows) * divide_up(columns, format.block);
  } else {
    layout.num_codes = divide_up(numel, 2);
    layout.num_scales = divide_up(numel, format.block);
  }
  layout.scales = round_up(layout.num_codes, 4);
  if (format.kind == Kind::kMxfp4) {
    // Matrices of several experts follow one another: each begins where vectors may.
    constexpr int64_t kVector = 16;
    layout.nested = layout.mean = layout.total =
        round_up(layout.scales + layout.num_scales, kVector);
    return layout;
  }
  if (!format.nested) {
    layout.nested = layout.mean = layout.total = layout.scales + 4 * layout.num_scales;
    return layout;
  }
  layout.num_nested = divide_up(layout.num_scales, kNestedBlock);
  layout.nested = round_up(layout.scales + layout.num_scales, 4);
  layout.mean = layout.nested + 4 * layout.num_nested;
  layout.total = layout.mean + 4;
  return layout;
}

std::string describe(const Format& format) {
  if (format.kind == Kind::kInt8) return "int8, one scale a row";
  if (format.kind == Kind::kFp8) {
    return fmt::format("fp8, one scale for {} x {}", format.tile_rows, format.block);
  }
  if (format.kind == Kind::kInts) {
    return fmt::format("integers of {} bits, one {} for {} columns{}", format.ints.bits,
                       format.ints.has_zeros ? "scale and zero" : "scale", format.block,
                       format.ints.has_order ? " in an order" : "");
  }
  return fmt::format("{}, blocks of {}{}", name_of(format.kind), format.block,
                     format.nested ? ", double" : "");
}

}  // namespace strata::ops::quant
