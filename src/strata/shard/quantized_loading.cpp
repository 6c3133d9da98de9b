// Loading of quantised parameters. Never: the arithmetic.
#include "strata/shard/quantized_loading.h"

#include <cstring>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/page_advice.h"
#include "strata/comm/agreement.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_codes.h"
#include "strata/hf/int_weight.h"
#include "strata/hf/mxfp4.h"
#include "strata/models/int_weights.h"
#include "strata/ops/quant/codebook.h"
#include "strata/ops/quant/range_quantizer.h"
#include "strata/shard/fp8_loading.h"
#include "strata/shard/int_loading.h"
#include "strata/shard/loading.h"
#include "strata/shard/segments.h"

namespace strata::shard {
namespace {

using ops::quant::Layout;

// A piece and its place in a home.
struct Target {
  Piece piece;
  at::Tensor home;  // the piece's bytes
};

std::vector<Target> targets_of(UnitStore& store) {
  std::vector<Target> targets;
  for (const OwnPiece& own : own_pieces(store)) {
    if (own.piece.parameter->quantization()) targets.push_back({own.piece, value_of(store, own)});
  }
  return targets;
}

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

void place_bytes(const std::vector<Target>& targets, const nn::Parameter* parameter,
                 const at::Tensor& bytes) {
  for (const Target& target : targets) {
    if (target.piece.parameter != parameter || target.home.is_alias_of(bytes)) continue;
    target.home.copy_(bytes.narrow(0, target.piece.tensor_begin, target.piece.length));
  }
}

// To memory of any device.
void read_codes(const StoredCodes& codes, int64_t begin, const at::Tensor& out) {
  if (out.is_cpu()) {
    codes.read(begin, out);
    return;
  }
  const at::Tensor on_host = at::empty(out.sizes(), at::TensorOptions().dtype(at::kByte));
  codes.read(begin, on_host);
  out.copy_(on_host);
}

bool is_mxfp4(const nn::Parameter& parameter) {
  return parameter.quantization()->format == ops::quant::kMxfp4Format;
}

bool are_stored(const hf::ModelFolder& folder, const std::string& name,
                const nn::Parameter& parameter) {
  return !ops::quant::is_of_bitsandbytes(parameter.quantization()->format) ||
         hf::find_quantized_weight(folder, name).has_value();
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

// Elements of a tensor of the file: where they are mapped, unless other tensors before it have put
// it between two addresses of its type.
at::Tensor elements_of(std::span<const std::byte> bytes, at::ScalarType type) {
  const auto count = static_cast<int64_t>(bytes.size() / at::elementSize(type));
  const auto options = at::TensorOptions().dtype(type);
  if (reinterpret_cast<uintptr_t>(bytes.data()) % at::elementSize(type) == 0) {
    // Never written to: quantising only reads.
    return at::from_blob(const_cast<std::byte*>(bytes.data()), {count}, options);
  }
  at::Tensor aligned = at::empty({count}, options);
  std::memcpy(aligned.mutable_data_ptr(), bytes.data(), bytes.size());
  return aligned;
}

// A weight of a file that is no codes of bitsandbytes, range by range.
class PlainRanges {
 public:
  PlainRanges(const hf::ModelFolder& folder, const std::string& name)
      : folder_(folder),
        fp8_(hf::find_fp8_weight(folder, name)),
        ints_(hf::find_int_weight(folder, name)),
        type_(type_of_values(folder, name)) {
    if (ints_) return;
    const hf::TensorInfo& info = *folder.find(name);
    bytes_ = folder.bytes(info);
    element_ = hf::size_of(info.dtype);
  }

  at::ScalarType type() const { return type_; }

  // Elements [begin, begin + count), as they are or decoded.
  at::Tensor take(int64_t begin, int64_t count) const {
    map_pages(range(begin, count));
    if (!fp8_ && !ints_) return elements_of(range(begin, count), type_);
    at::Tensor values = at::empty({count}, type_);
    if (fp8_) read_fp8(folder_, *fp8_, begin, values);
    if (ints_) read_ints(folder_, *ints_, begin, values);
    return values;
  }

  void give_back(int64_t begin, int64_t count) const { forget_pages(range(begin, count)); }
  // Those that ranges share, too.
  void give_back_all() const {
    if (ints_) return forget_ints(folder_, *ints_);
    forget_pages(bytes_);
  }

 private:
  std::span<const std::byte> range(int64_t begin, int64_t count) const {
    if (ints_) return {};  // a range lies all over them
    return bytes_.subspan(static_cast<size_t>(begin) * element_,
                          static_cast<size_t>(count) * element_);
  }

  const hf::ModelFolder& folder_;
  std::optional<hf::Fp8Weight> fp8_;
  std::optional<hf::IntWeight> ints_;
  at::ScalarType type_;
  std::span<const std::byte> bytes_;
  size_t element_ = 1;
};

// One of the tensor's matrices, quantised into `to`. Range by range, whose pages are given back.
void quantize_matrix(const PlainRanges& ranges, const nn::Parameter& parameter, at::ScalarType type,
                     int64_t matrix, const at::Tensor& to) {
  const ops::quant::Format& format = parameter.quantization()->format;
  const int64_t rows = parameter.matrix_rows(), columns = parameter.matrix_columns();
  const int64_t used = ops::quant::stored_bytes(format, rows, columns);
  to.narrow(0, used, to.numel() - used).zero_();  // up to where the next one may begin
  ops::quant::RangeQuantizer quantizer(format, rows, columns, to.narrow(0, 0, used));
  auto* codes = to.mutable_data_ptr<uint8_t>();
  const int64_t numel = rows * columns, first = matrix * numel;
  for (int64_t begin = 0; begin < numel; begin += quantizer.at_once()) {
    const int64_t count = std::min(quantizer.at_once(), numel - begin);
    at::Tensor values = ranges.take(first + begin, count);
    if (rounds_before_quantizing(ranges.type(), type)) values = values.to(type);
    uint8_t* place = codes + quantizer.code_offset(begin);
    take_pages({place, static_cast<size_t>(quantizer.code_offset(count))});
    quantizer.quantize(values, begin, place);
    ranges.give_back(first + begin, count);
  }
  quantizer.finish();
}

// The tensor of the file, quantised into `to`, host memory for all its bytes.
void quantize_from(const hf::ModelFolder& folder, const std::string& name,
                   const nn::Parameter& parameter, at::ScalarType type, const at::Tensor& to) {
  if (hf::announces_codes(folder.config())) {
    throw FormatError(
        "{}: tensor \"{}\": found plain values, expected codes as quantization_config says; name "
        "its module in the llm_int8_skip_modules of config.json",
        folder.path().string(), name);
  }
  const PlainRanges ranges(folder, name);
  for (int64_t i = 0; i < parameter.num_matrices(); ++i) {
    quantize_matrix(ranges, parameter, type, i,
                    to.narrow(0, i * parameter.matrix_bytes(), parameter.matrix_bytes()));
  }
  ranges.give_back_all();
}

at::Tensor bytes_for(const nn::Parameter& parameter) {
  return at::empty({parameter.stored_numel()}, at::TensorOptions().dtype(at::kByte));
}

// To memory of any device.
void quantize_to(const hf::ModelFolder& folder, const std::string& name,
                 const nn::Parameter& parameter, at::ScalarType type, const at::Tensor& out) {
  if (out.is_cpu()) return quantize_from(folder, name, parameter, type, out);
  const at::Tensor on_host = bytes_for(parameter);
  quantize_from(folder, name, parameter, type, on_host);
  out.copy_(on_host);
}

// Where the bytes of a weight come first: in its home, where that has room for all of them.
at::Tensor arrival_of(const std::vector<Target>& targets, const nn::Parameter& parameter) {
  for (const Target& target : targets) {
    if (target.piece.parameter == &parameter && target.piece.length == parameter.stored_numel() &&
        target.home.is_cpu()) {
      return target.home;
    }
  }
  return bytes_for(parameter);
}

}  // namespace

bool rounds_before_quantizing(at::ScalarType from, at::ScalarType to) {
  return to != from && to != at::kFloat;
}

at::Tensor stored_codes(const hf::ModelFolder& folder, const std::string& name,
                        const nn::Parameter& parameter) {
  const at::Tensor bytes = bytes_for(parameter);
  if (are_stored(folder, name, parameter)) {
    codes_in_file(folder, name, parameter).read(0, bytes);
  } else {
    quantize_from(folder, name, parameter, at::kFloat, bytes);
  }
  return bytes;
}

void fill_quantized_homes(UnitStore& store, const hf::ModelFolder& folder,
                          const models::WeightSources& sources, at::ScalarType type) {
  comm::Group& world = *store.mesh().world;
  const std::vector<Target> targets = targets_of(store);
  // The same list on every rank, in the model's order.
  std::vector<const nn::Parameter*> dealt;
  comm::all_or_nothing(world, "reading quantised weights", [&] {
    for (const nn::Parameter* parameter : store.model().parameters()) {
      if (!parameter->quantization()) continue;
      if (!are_stored(folder, sources.at(parameter->name()), *parameter)) {
        dealt.push_back(parameter);
      }
    }
    for (const Target& target : targets) {
      const nn::Parameter& parameter = *target.piece.parameter;
      const std::string& name = sources.at(parameter.name());
      if (!are_stored(folder, name, parameter)) continue;
      read_codes(codes_in_file(folder, name, parameter), target.piece.tensor_begin, target.home);
    }
  });
  const auto ranks = static_cast<size_t>(world.size());
  for (size_t round = 0; round < dealt.size(); round += ranks) {
    at::Tensor own;
    comm::all_or_nothing(world, "quantising the model", [&] {
      const size_t mine = round + static_cast<size_t>(world.rank());
      if (mine >= dealt.size()) return;
      own = arrival_of(targets, *dealt[mine]);
      quantize_from(folder, sources.at(dealt[mine]->name()), *dealt[mine], type, own);
    });
    for (size_t i = 0; i < ranks && round + i < dealt.size(); ++i) {
      const nn::Parameter* parameter = dealt[round + i];
      const bool is_own = i == static_cast<size_t>(world.rank());
      const at::Tensor bytes = is_own ? own : arrival_of(targets, *parameter);
      if (ranks > 1) world.broadcast(bytes, static_cast<int>(i))->wait();
      place_bytes(targets, parameter, bytes);
    }
  }
}

void send_quantized_homes(UnitStore& store, const hf::ModelFolder* folder,
                          const models::WeightSources& sources, at::ScalarType type) {
  send_homes(store, HomeKind::kCodes, [&]() -> Source {
    return [&](const nn::Parameter& parameter, int64_t /*begin*/, const at::Tensor& out) {
      const std::string& name = sources.at(parameter.name());
      if (are_stored(*folder, name, parameter)) {
        read_codes(codes_in_file(*folder, name, parameter), /*begin=*/0, out);
      } else {
        quantize_to(*folder, name, parameter, type, out);
      }
      return true;
    };
  });
}

}  // namespace strata::shard
