#include "strata/shard/loading.h"

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::shard {

at::ScalarType scalar_type_of(hf::DType dtype, const std::string& tensor_name) {
  switch (dtype) {
    case hf::DType::kF64:
      return at::kDouble;
    case hf::DType::kF32:
      return at::kFloat;
    case hf::DType::kF16:
      return at::kHalf;
    case hf::DType::kBF16:
      return at::kBFloat16;
    default:
      throw FormatError(
          "tensor \"{}\": found element type {}, expected F64, F32, F16 or BF16; convert "
          "the checkpoint first",
          tensor_name, hf::name_of(dtype));
  }
}

hf::DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return hf::DType::kF64;
    case at::kFloat:
      return hf::DType::kF32;
    case at::kHalf:
      return hf::DType::kF16;
    case at::kBFloat16:
      return hf::DType::kBF16;
    default:
      throw InternalError(
          "element type {}: found a weight of this type, expected a floating type; "
          "report this as a bug",
          c10::toString(type));
  }
}

void fill_homes(UnitStore& store, const Source& source) {
  const int rank = store.mesh().shard->rank();
  for (int u = 0; u < store.num_units(); ++u) {
    const auto& segments = store.unit(u).segments;
    for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
      for (const Piece& piece : pieces_of(segments[static_cast<size_t>(s)], rank)) {
        if (piece.parameter->quantization()) continue;
        source(*piece.parameter, piece.tensor_begin,
               store.home(u, s).value.narrow(0, piece.shard_begin, piece.length));
      }
    }
  }
}

Source folder_source(const hf::ModelFolder& folder,
                     std::function<std::string(const nn::Parameter&)> name_of) {
  return [&folder, name_of = std::move(name_of)](const nn::Parameter& parameter, int64_t begin,
                                                 const at::Tensor& out) {
    const std::string name = name_of(parameter);
    const hf::TensorInfo* info = name.empty() ? nullptr : folder.find(name);
    if (info == nullptr) return false;
    const at::ScalarType type = scalar_type_of(info->dtype, name);
    const size_t element = hf::size_of(info->dtype);
    const std::span<const std::byte> bytes = folder.bytes(*info).subspan(
        static_cast<size_t>(begin) * element, static_cast<size_t>(out.numel()) * element);
    if (type == out.scalar_type()) {
      std::memcpy(out.data_ptr(), bytes.data(), bytes.size());
      forget_pages(bytes);
      return true;
    }
    // The map may place a tensor at any byte; conversion kernels want natural alignment.
    at::Tensor aligned = at::empty({out.numel()}, at::TensorOptions().dtype(type));
    std::memcpy(aligned.data_ptr(), bytes.data(), bytes.size());
    forget_pages(bytes);
    out.copy_(aligned);
    return true;
  };
}

void place_tensor(UnitStore& store, const nn::Parameter& parameter, const at::Tensor& whole) {
  const int rank = store.mesh().shard->rank();
  for (int u = 0; u < store.num_units(); ++u) {
    const auto& segments = store.unit(u).segments;
    for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
      for (const Piece& piece : pieces_of(segments[static_cast<size_t>(s)], rank)) {
        if (piece.parameter != &parameter) continue;
        store.home(u, s)
            .value.narrow(0, piece.shard_begin, piece.length)
            .copy_(whole.reshape({-1}).narrow(0, piece.tensor_begin, piece.length));
      }
    }
  }
}

}  // namespace strata::shard
