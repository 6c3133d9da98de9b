#include "strata/shard/stored_codes.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_codes.h"
#include "strata/hf/int_weight.h"
#include "strata/hf/mxfp4.h"
#include "strata/libtorch/parallel_for.h"
#include "strata/models/int_weights.h"
#include "strata/ops/quant/codebook.h"
#include "strata/shard/int_loading.h"

namespace strata::shard {
namespace {

using ops::quant::Layout;

void check_map(const hf::ModelFolder& folder, const hf::TensorInfo& info, const float* values) {
  if (std::memcmp(folder.bytes(info).data(), values, info.size_bytes()) == 0) return;
  throw FormatError(
      "{}: {}: found another table of values, expected that of the quant_type; quantise the model "
      "again",
      folder.path().string(), info.name);
}

// Part of a tensor's bytes that lies in the file.
struct Stretch {
  int64_t begin;  // in the tensor's bytes
  std::span<const std::byte> bytes;
  bool is_mapped = true;
};

// Whole numbers of a file in the order in which they rest, and what goes with them.
struct IntParts {
  IntParts(const hf::ModelFolder& from, const hf::IntWeight& of)
      : folder(from),
        weight(of),
        codes(from, of),
        scales(codes.scales()),
        zeros(codes.zeros()),
        order(codes.order()) {}

  // Bytes [begin, begin + count) of the codes, row after row. Elements that follow each other lie
  // all over the words of GPTQ and AWQ: rows are taken some at a time.
  void read_codes(int64_t begin, int64_t count, uint8_t* to) const {
    constexpr int64_t kRowsAtOnce = 64;  // whole words of AWQ
    const int64_t bytes = codes.row_bytes(), end = begin + count;
    const int64_t first = begin / bytes / kRowsAtOnce, last = (end + bytes - 1) / bytes;
    const int64_t parts = (last + kRowsAtOnce - 1) / kRowsAtOnce;
    at::parallel_for(first, parts, /*grain_size=*/1, [&](int64_t from, int64_t until) {
      std::vector<uint8_t> rows;
      for (int64_t part = from; part < until; ++part) {
        const int64_t row = part * kRowsAtOnce;
        const int64_t num_rows = std::min(kRowsAtOnce, weight.rows - row);
        rows.resize(static_cast<size_t>(num_rows * bytes));
        codes.read_rows(row, rows);
        const int64_t low = std::max(begin, row * bytes);
        const int64_t high = std::min(end, (row + num_rows) * bytes);
        std::memcpy(to + (low - begin), rows.data() + (low - row * bytes),
                    static_cast<size_t>(high - low));
      }
    });
  }

  const hf::ModelFolder& folder;
  hf::IntWeight weight;
  hf::IntCodes codes;
  std::vector<std::byte> scales;
  std::vector<int8_t> zeros;
  std::vector<int32_t> order;
};

// Codes, scales and second-level scales of a serialised weight, where layout_of() puts them.
class StoredCodes {
 public:
  // Blocks and scales of each expert, one expert after the other.
  StoredCodes(const hf::ModelFolder& folder, const hf::Mxfp4Weight& weight) : mean_(0) {
    const auto experts = static_cast<size_t>(weight.shape[0]);
    const Layout layout =
        ops::quant::layout_of(ops::quant::kMxfp4Format, weight.shape[2], weight.shape[1]);
    const auto blocks = folder.bytes(*weight.blocks), scales = folder.bytes(*weight.scales);
    const size_t of_blocks = blocks.size() / experts, of_scales = scales.size() / experts;
    for (size_t e = 0; e < experts; ++e) {
      const int64_t begin = layout.total * static_cast<int64_t>(e);
      stretches_.push_back({begin, blocks.subspan(e * of_blocks, of_blocks)});
      stretches_.push_back({begin + layout.scales, scales.subspan(e * of_scales, of_scales)});
    }
  }
  // A weight in fp8. Scales of 16 bits rest in 32.
  StoredCodes(const hf::ModelFolder& folder, const hf::Fp8Weight& weight)
      : mean_(0), converted_(hf::fp8_scales_of(folder, weight)) {
    const Layout layout = ops::quant::layout_of(
        ops::quant::fp8_format(weight.tile_rows, weight.tile_columns), weight.rows, weight.columns);
    stretches_ = {{0, folder.bytes(*weight.codes)},
                  {layout.scales, std::as_bytes(std::span(converted_)), /*is_mapped=*/false}};
  }
  StoredCodes(const hf::ModelFolder& folder, const hf::IntWeight& weight,
              const ops::quant::Format& format)
      : mean_(0), ints_(std::in_place, folder, weight) {
    const Layout layout = ops::quant::layout_of(format, weight.rows, weight.columns);
    num_int_codes_ = layout.num_codes;
    stretches_ = {
        {layout.scales, std::span<const std::byte>(ints_->scales), /*is_mapped=*/false},
        {layout.zeros, std::as_bytes(std::span(std::as_const(ints_->zeros))), /*is_mapped=*/false},
        {layout.order, std::as_bytes(std::span(std::as_const(ints_->order))), /*is_mapped=*/false}};
  }
  StoredCodes(const hf::ModelFolder& folder, const hf::QuantizedWeight& weight,
              const nn::Parameter& parameter)
      : mean_(static_cast<float>(weight.nested_offset)) {
    const ops::quant::Format& format = parameter.quantization()->format;
    const Layout layout = ops::quant::layout_of(format, parameter.shape()[0], parameter.shape()[1]);
    stretches_ = {{0, folder.bytes(*weight.codes)}, {layout.scales, folder.bytes(*weight.scales)}};
    if (weight.map != nullptr) {
      check_map(folder, *weight.map, ops::quant::codes_of(format.kind).data());
    }
    if (weight.nested == nullptr) return;
    check_map(folder, *weight.nested_map, ops::quant::dynamic_map(/*is_signed=*/true).data());
    stretches_.push_back({layout.nested, folder.bytes(*weight.nested)});
    stretches_.push_back({layout.mean, {reinterpret_cast<const std::byte*>(&mean_), 4}});
  }
  StoredCodes(const StoredCodes&) = delete;
  StoredCodes& operator=(const StoredCodes&) = delete;

  // Bytes [begin, begin + out.numel()); what lies between the parts is zero.
  void read(int64_t begin, const at::Tensor& out) const {
    out.zero_();
    auto* to = out.mutable_data_ptr<uint8_t>();
    for (const Stretch& stretch : stretches_) {
      const int64_t end = stretch.begin + static_cast<int64_t>(stretch.bytes.size());
      const int64_t first = std::max(begin, stretch.begin);
      const int64_t last = std::min(begin + out.numel(), end);
      if (first >= last) continue;
      std::memcpy(to + (first - begin), stretch.bytes.data() + (first - stretch.begin),
                  static_cast<size_t>(last - first));
      if (stretch.is_mapped) forget_pages(stretch.bytes);
    }
    if (!ints_) return;
    const int64_t count = std::min(begin + out.numel(), num_int_codes_) - begin;
    if (count > 0) ints_->read_codes(begin, count, to);
    forget_ints(ints_->folder, ints_->weight);
  }

 private:
  float mean_;
  std::vector<float> converted_;
  std::optional<IntParts> ints_;
  int64_t num_int_codes_ = 0;
  std::vector<Stretch> stretches_;
};

bool is_mxfp4(const nn::Parameter& parameter) {
  return parameter.quantization()->format == ops::quant::kMxfp4Format;
}

// FormatError where this rank's file is another than that by which ranks agreed.
hf::Fp8Weight fp8_weight(const hf::ModelFolder& folder, const std::string& name,
                         const nn::Parameter& parameter) {
  const auto weight = hf::find_fp8_weight(folder, name);
  const ops::quant::Format& expected = parameter.quantization()->format;
  if (weight && ops::quant::fp8_format(weight->tile_rows, weight->tile_columns) == expected) {
    return *weight;
  }
  throw FormatError(
      "{}: tensor \"{}\": found other values than on rank 0, expected {}; give all "
      "ranks one checkpoint",
      folder.path().string(), name, ops::quant::describe(expected));
}

// The same of whole numbers.
hf::IntWeight int_weight(const hf::ModelFolder& folder, const std::string& name,
                         const nn::Parameter& parameter) {
  const auto weight = hf::find_int_weight(folder, name);
  const ops::quant::Format& expected = parameter.quantization()->format;
  if (weight && models::format_of(folder, *weight) == expected) return *weight;
  throw FormatError(
      "{}: weight \"{}\": found other values than on rank 0, expected {}; give all ranks one "
      "checkpoint",
      folder.path().string(), name, ops::quant::describe(expected));
}

// Requires: are_stored().
StoredCodes codes_in_file(const hf::ModelFolder& folder, const std::string& name,
                          const nn::Parameter& parameter) {
  if (is_mxfp4(parameter)) return {folder, *hf::find_mxfp4_weight(folder, name)};
  if (parameter.quantization()->format.kind == ops::quant::Kind::kFp8) {
    return {folder, fp8_weight(folder, name, parameter)};
  }
  if (parameter.quantization()->format.kind == ops::quant::Kind::kInts) {
    return {folder, int_weight(folder, name, parameter), parameter.quantization()->format};
  }
  return {folder, *hf::find_quantized_weight(folder, name), parameter};
}

}  // namespace

bool are_stored(const hf::ModelFolder& folder, const std::string& name,
                const nn::Parameter& parameter) {
  return !ops::quant::is_of_bitsandbytes(parameter.quantization()->format) ||
         hf::find_quantized_weight(folder, name).has_value();
}

void read_stored_codes(const hf::ModelFolder& folder, const std::string& name,
                       const nn::Parameter& parameter, int64_t begin, const at::Tensor& out) {
  const StoredCodes codes = codes_in_file(folder, name, parameter);
  if (out.is_cpu()) {
    codes.read(begin, out);
    return;
  }
  const at::Tensor on_host = at::empty(out.sizes(), at::TensorOptions().dtype(at::kByte));
  codes.read(begin, on_host);
  out.copy_(on_host);
}

}  // namespace strata::shard
