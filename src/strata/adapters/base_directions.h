// A and B that come off the base's own weight: PiSSA, OLoRA and LoftQ.
// Owns: the formulas of one weight. Never: draws (except for those handed in), where values lie.
// Source: PEFT tuners/lora/layer.py (pissa_init, olora_init), utils/loftq_utils.py.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "strata/adapters/lora.h"

namespace strata::adapters {

// A [rank, in] and B [out, rank], and what is left of the weight [out, in]; all fp32.
struct BaseDirections {
  at::Tensor a, b, base;
};

// N of "pissa_niter_N", -1 for another name.
int64_t num_svd_iterations(const std::string& name);

// What "pissa", "olora" or "loftq" make of an fp32 weight. `random` [min(out, in), rank]: where
// pissa_niter_N's search begins; undefined for an exact decomposition.
BaseDirections base_directions(const at::Tensor& weight, int64_t rank, double scaling,
                               const LoraOptions& options, const at::Tensor& random = {});

// B A nearest to `rest` [out, in] of that rank, the singular values shared by halves; no base.
BaseDirections best_approximation(const at::Tensor& rest, int64_t rank);

}  // namespace strata::adapters
