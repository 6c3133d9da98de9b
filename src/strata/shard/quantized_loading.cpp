// Loading of quantised parameters. Never: the arithmetic.
#include "strata/shard/quantized_loading.h"

#include <cstring>

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/comm/agreement.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/ops/quant/codebook.h"
#include "strata/shard/loading.h"

namespace strata::shard {
namespace {

using ops::quant::Layout;

// A piece and its place in a home.
struct Target {
  Piece piece;
  at::Tensor home;  // the piece's bytes
};

std::vector<Target> targets_of(UnitStore& store) {
  const int rank = store.mesh().shard->rank();
  std::vector<Target> targets;
  for (int u = 0; u < store.num_units(); ++u) {
    const auto& segments = store.unit(u).segments;
    for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
      for (const Piece& piece : pieces_of(segments[static_cast<size_t>(s)], rank)) {
        if (!piece.parameter->quantization()) continue;
        targets.push_back(
            {piece, store.home(u, s).value.narrow(0, piece.shard_begin, piece.length)});
      }
    }
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
};

// Codes, scales and second-level scales of a serialised weight, where layout_of() puts them.
class StoredCodes {
 public:
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
      forget_pages(stretch.bytes);
    }
  }

 private:
  float mean_;
  std::vector<Stretch> stretches_;
};

void place_bytes(const std::vector<Target>& targets, const nn::Parameter* parameter,
                 const at::Tensor& bytes) {
  for (const Target& target : targets) {
    if (target.piece.parameter != parameter) continue;
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

bool read_stored(const hf::ModelFolder& folder, const std::string& name, const Target& target) {
  const auto weight = hf::find_quantized_weight(folder, name);
  if (!weight) return false;
  read_codes(StoredCodes(folder, *weight, *target.piece.parameter), target.piece.tensor_begin,
             target.home);
  return true;
}

// The whole tensor of the file, as it lies there, quantised: read where it is mapped, unless other
// tensors before it have put it between two addresses of its type.
at::Tensor quantize_from(const hf::ModelFolder& folder, const std::string& name,
                         const nn::Parameter& parameter, at::ScalarType type) {
  if (hf::announces_codes(folder.config())) {
    throw FormatError(
        "{}: tensor \"{}\": found plain values, expected codes as quantization_config says; name "
        "its module in the llm_int8_skip_modules of config.json",
        folder.path().string(), name);
  }
  const hf::TensorInfo* info = folder.find(name);
  const auto options = at::TensorOptions().dtype(scalar_type_of(info->dtype, name));
  const std::span<const std::byte> bytes = folder.bytes(*info);
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  at::Tensor whole;
  if (address % hf::size_of(info->dtype) == 0) {
    // Never written to: quantize() only reads.
    whole = at::from_blob(const_cast<std::byte*>(bytes.data()), parameter.shape(), options);
  } else {
    whole = at::empty(parameter.shape(), options);
    std::memcpy(whole.mutable_data_ptr(), bytes.data(), bytes.size());
  }
  if (rounds_before_quantizing(whole.scalar_type(), type)) whole = whole.to(type);
  const at::Tensor codes = ops::quant::quantize(whole, parameter.quantization()->format).bytes;
  forget_pages(bytes);
  return codes;
}

}  // namespace

bool rounds_before_quantizing(at::ScalarType from, at::ScalarType to) {
  return to != from && to != at::kFloat;
}

at::Tensor stored_codes(const hf::ModelFolder& folder, const std::string& name,
                        const nn::Parameter& parameter) {
  const auto weight = hf::find_quantized_weight(folder, name);
  if (!weight) return quantize_from(folder, name, parameter, at::kFloat);
  at::Tensor bytes = at::empty({parameter.stored_numel()}, at::TensorOptions().dtype(at::kByte));
  StoredCodes(folder, *weight, parameter).read(0, bytes);
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
      if (!hf::find_quantized_weight(folder, sources.at(parameter->name()))) {
        dealt.push_back(parameter);
      }
    }
    for (const Target& target : targets) {
      read_stored(folder, sources.at(target.piece.parameter->name()), target);
    }
  });
  const auto ranks = static_cast<size_t>(world.size());
  for (size_t round = 0; round < dealt.size(); round += ranks) {
    at::Tensor own;
    comm::all_or_nothing(world, "quantising the model", [&] {
      const size_t mine = round + static_cast<size_t>(world.rank());
      if (mine >= dealt.size()) return;
      own = quantize_from(folder, sources.at(dealt[mine]->name()), *dealt[mine], type);
    });
    for (size_t i = 0; i < ranks && round + i < dealt.size(); ++i) {
      const nn::Parameter* parameter = dealt[round + i];
      const bool is_own = i == static_cast<size_t>(world.rank());
      const at::Tensor bytes =
          is_own ? own
                 : at::empty({parameter->stored_numel()}, at::TensorOptions().dtype(at::kByte));
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
      if (const auto weight = hf::find_quantized_weight(*folder, name)) {
        read_codes(StoredCodes(*folder, *weight, parameter), /*begin=*/0, out);
      } else {
        out.copy_(quantize_from(*folder, name, parameter, type));
      }
      return true;
    };
  });
}

}  // namespace strata::shard
