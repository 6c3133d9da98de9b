// The mark of a base as a run or a folder has it, and what another one means for an adapter. Owns:
// which bases an adapter may go over. Never: the mark's fingerprint and text
// (hf/base_fingerprint.h).
#pragma once

#include <optional>
#include <string>

#include <c10/core/ScalarType.h>

#include "strata/hf/model_folder.h"
#include "strata/models/quantization.h"

namespace strata::checkpoint {

// Plain weights that become codes on the way: first rounded to `type`, as transformers does.
struct CodesOnTheWay {
  models::QuantizationOptions quantization;
  at::ScalarType type;
};

// The text of the folder's mark; of a folder that holds codes the one that their writer left, or
// one of the codes alone. Whether values are rounded is judged by those that the fingerprint is
// made of, so that a wider copy of a base has its mark; which layers are codes by the model, so
// that `lm_head` named and nothing named are one.
std::string base_mark(const hf::ModelFolder& folder,
                      const std::optional<CodesOnTheWay>& quantized = {});

// What of it an adapter carries that goes over those weights in any form: no codes; empty where the
// weights are not known.
std::string mark_of_weights(const std::string& mark);

// Throws ConfigError when the marks of an adapter's base and of the base at hand are both known and
// differ in the weights or, for an adapter that was made from codes, in those. Returns what cannot
// be known, or that an adapter whose first values are of plain weights (`changes_base`) goes over
// codes, as a note, or nothing.
std::string require_base(const std::string& adapter, const std::string& trained_on,
                         const std::string& base, const std::string& found, bool changes_base);

}  // namespace strata::checkpoint
