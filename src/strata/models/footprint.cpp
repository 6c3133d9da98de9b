#include "strata/models/footprint.h"

namespace strata::models {
namespace {

using ops::quant::Kind;

Kind kind_of(const nn::Parameter& parameter) { return parameter.quantization()->format.kind; }

// What the reference counts: of bitsandbytes without scales; of MXFP4, fp8 and whole numbers scales
// are weights, too.
int64_t code_bytes(const nn::Parameter& parameter) {
  switch (kind_of(parameter)) {
    case Kind::kInt8:
      return parameter.numel();
    case Kind::kMxfp4:
      return parameter.numel() / 2 + parameter.numel() / ops::quant::kMxfp4Block;
    case Kind::kFp8:
    case Kind::kInts:
      return parameter.stored_numel();
    default:
      return (parameter.numel() + 1) / 2;
  }
}

}  // namespace

int64_t counted_elements(const nn::Parameter& parameter) {
  const bool in_4_bits = parameter.quantization() &&
                         (kind_of(parameter) == Kind::kNf4 || kind_of(parameter) == Kind::kFp4);
  return in_4_bits ? 2 * code_bytes(parameter) : parameter.numel();
}

int64_t memory_footprint_bytes(Model& model) {
  // Where a copy trains, the reference keeps the base's own weight beside it.
  int64_t bytes =
      model.buffer_bytes() + model.num_copied_elements() * static_cast<int64_t>(sizeof(float));
  for (const nn::Parameter* parameter : model.parameters()) {
    bytes += parameter->quantization()
                 ? code_bytes(*parameter)
                 : parameter->numel() *
                       static_cast<int64_t>(c10::elementSize(parameter->storage_type()));
  }
  return bytes;
}

int64_t scale_bytes(Model& model) {
  int64_t bytes = 0;
  for (const nn::Parameter* parameter : model.parameters()) {
    if (parameter->quantization()) bytes += parameter->stored_numel() - code_bytes(*parameter);
  }
  return bytes;
}

}  // namespace strata::models
