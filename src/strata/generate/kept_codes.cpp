#include "strata/generate/kept_codes.h"

#include "strata/hf/fp8_form.h"
#include "strata/hf/int_form.h"
#include "strata/models/fp8_weights.h"
#include "strata/models/int_weights.h"
#include "strata/models/quantization.h"

namespace strata::generate {

void keep_codes_of_files(models::Model& model, const hf::ModelFolder& folder,
                         const DecodedForms& decoded, at::ScalarType type) {
  if (!decoded.mxfp4) models::keep_mxfp4(model, folder.config(), type);
  if (!decoded.fp8 && hf::announces_fp8(folder.config())) {
    models::keep_fp8(model, models::fp8_tiles(folder), type);
  }
  if (!decoded.ints && hf::announces_ints(folder.config())) {
    models::keep_ints(model, models::int_formats(folder), type);
  }
}

KeptCodes kept_codes(models::Model& model) {
  KeptCodes kept;
  for (const nn::Parameter* parameter : model.parameters()) {
    const auto& quantization = parameter->quantization();
    if (!quantization || ops::quant::is_of_bitsandbytes(quantization->format)) continue;
    kept.emplace(parameter->name(), *quantization);
  }
  return kept;
}

void keep_codes(models::Model& model, const KeptCodes& kept, at::ScalarType type) {
  for (nn::Parameter* parameter : model.parameters()) {
    const auto quantization = kept.find(parameter->name());
    if (quantization == kept.end() || parameter->requires_grad()) continue;
    parameter->set_storage_type(type);
    parameter->set_quantization(quantization->second);
  }
}

}  // namespace strata::generate
