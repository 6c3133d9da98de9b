// A parameter of the reference with the matrices of all experts as one that may have a branch.
// Owns: what holds them here, which of its dims are inputs. Never: the branch (expert_branch.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/nn/experts/expert_branch.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

// `weight` [experts, in, out], with `rows_are_outputs` [experts, out, in]; must outlive the result.
ExpertParameter expert_parameter(Parameter& weight, bool rows_are_outputs);

// Where every expert has layers of its own: `weights` [out, in] of one expert after the other, of
// each those whose outputs follow one another in the parameter.
ExpertParameter expert_parameter(const std::string& name, int64_t num_experts,
                                 const std::vector<Parameter*>& weights);

}  // namespace strata::nn
