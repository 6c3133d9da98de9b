// The precompiled header of files that call operators. Owns, with its neighbours: which libtorch
// headers the project sees. Never: declarations.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "strata/libtorch/precompiled/tensor.h"
