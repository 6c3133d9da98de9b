// Fills the homes of quantised parameters: codes from a file that holds them, or weights that are
// quantised on the way in. Owns: who quantises what. Never: the arithmetic (ops/quant).
#pragma once

#include "strata/hf/model_folder.h"
#include "strata/models/model.h"
#include "strata/shard/unit_store.h"

namespace strata::shard {

// Weights that the folder holds as codes are read as such, each rank its own bytes. Others are
// dealt out: each rank quantises whole tensors, which then go to all, so that the result equals
// bitsandbytes' bit for bit at every world size.
// `type`: that of the run's weights, to which plain ones are rounded before, as transformers does.
// Memory: a range of a tensor in quantisation. Where a rank's homes have room for parts of tensors
// alone, one tensor as codes from each rank of the world, one at a time, and the rank's own.
// Collective over the world; fails on all ranks when it fails on one.
void fill_quantized_homes(UnitStore& store, const hf::ModelFolder& folder,
                          const models::WeightSources& sources, at::ScalarType type);

// The same for ranks that share no files: rank 0 reads or quantises, each gets its part
// (send_homes). `folder`: null on the other ranks.
void send_quantized_homes(UnitStore& store, const hf::ModelFolder* folder,
                          const models::WeightSources& sources, at::ScalarType type);

// Whether rounding weights of the type `from` to `to` changes what is quantised.
bool rounds_before_quantizing(at::ScalarType from, at::ScalarType to);

// All bytes of a quantised parameter (ops/quant/format.h) from the folder's tensor `name`.
at::Tensor stored_codes(const hf::ModelFolder& folder, const std::string& name,
                        const nn::Parameter& parameter);

}  // namespace strata::shard
