#include "strata/checkpoint/convert/vera_projection.h"

#include "strata/adapters/vera.h"
#include "strata/checkpoint/convert/param_groups.h"
#include "strata/checkpoint/convert/saved_values.h"
#include "strata/checkpoint/element_type.h"
#include "strata/hf/formats/torch_types.h"

namespace strata::checkpoint {
namespace {

nn::VeraProjection drawn(const SavedState& base, const SavedState& adapter, const AdapterParts& all,
                         const adapters::LoraOptions& settings) {
  const SharedProjection& needed = all.projection();
  nn::VeraProjection projection = adapters::draw_projection(
      settings.projection_prng_key, needed.rank, needed.most_in, needed.most_out);
  // Rounded with the frozen weights: to the type that the run gave them, else to that of the
  // file; not beside codes.
  for (const char* codes : {"load_in_4bit", "load_in_8bit"}) {
    if (setting_of(adapter, codes) == "true") return projection;
  }
  const std::optional<hf::DType> given = hf::dtype_of_torch_dtype(setting_of(adapter, "dtype"));
  for (const auto& [weight, parts] : all.by_weight()) {
    if (!parts.lambda_b) continue;
    const SavedTensor& tensor = base.tensors()[all.source_in_base(weight)];
    if (tensor.is_decoded) continue;
    adapters::round_projection(projection, memory_type_of(given.value_or(tensor.dtype)));
  }
  return projection;
}

}  // namespace

nn::VeraProjection projection_of(SavedState& base, SavedState& adapter, const AdapterParts& parts,
                                 const adapters::LoraOptions& settings) {
  const SharedProjection& stored = parts.projection();
  if (stored.rank == 0) return {};
  if (!stored.a || !stored.b) return drawn(base, adapter, parts, settings);
  nn::VeraProjection projection;
  projection.a = read_tensor(adapter, *stored.a).to(at::kFloat);
  projection.b = read_tensor(adapter, *stored.b).to(at::kFloat);
  if (projection.a.dim() != 2 || projection.b.dim() != 2 || projection.a.size(0) != stored.rank ||
      projection.b.size(1) != stored.rank || projection.a.size(1) < stored.most_in ||
      projection.b.size(0) < stored.most_out) {
    parts.refuse({"matrices of another size for \"base_model.vera_A\""});
  }
  return projection;
}

}  // namespace strata::checkpoint
