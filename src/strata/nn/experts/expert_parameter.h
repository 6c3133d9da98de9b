// A parameter that holds the matrices of all experts by itself, as one that may have a branch.
// Owns: which of its dims are inputs. Never: the branch (expert_branch.h).
#pragma once

#include "strata/nn/experts/expert_branch.h"
#include "strata/nn/parameter.h"

namespace strata::nn {

// `weight` [experts, in, out], with `rows_are_outputs` [experts, out, in]; must outlive the result.
ExpertParameter expert_parameter(Parameter& weight, bool rows_are_outputs);

}  // namespace strata::nn
