// Loading of quantised parameters. Never: the arithmetic.
#include "strata/shard/quantized_loading.h"

#include <cstring>

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/page_advice.h"
#include "strata/comm/agreement.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_weight.h"
#include "strata/ops/quant/range_quantizer.h"
#include "strata/shard/fp8_loading.h"
#include "strata/shard/int_loading.h"
#include "strata/shard/loading.h"
#include "strata/shard/segments.h"
#include "strata/shard/stored_codes.h"

namespace strata::shard {
namespace {

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

void place_bytes(const std::vector<Target>& targets, const nn::Parameter* parameter,
                 const at::Tensor& bytes) {
  for (const Target& target : targets) {
    if (target.piece.parameter != parameter || target.home.is_alias_of(bytes)) continue;
    target.home.copy_(bytes.narrow(0, target.piece.tensor_begin, target.piece.length));
  }
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
    read_stored_codes(folder, name, parameter, /*begin=*/0, bytes);
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
      read_stored_codes(folder, name, parameter, target.piece.tensor_begin, target.home);
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
        read_stored_codes(*folder, name, parameter, /*begin=*/0, out);
      } else {
        quantize_to(*folder, name, parameter, type, out);
      }
      return true;
    };
  });
}

}  // namespace strata::shard
