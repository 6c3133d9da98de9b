// The precompiled header of files that define derivatives or ask for them. Never: declarations.
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/libtorch/precompiled/operators.h"
