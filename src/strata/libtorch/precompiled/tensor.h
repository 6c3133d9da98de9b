// The precompiled header of files that handle tensors. Never: declarations.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/base/precompiled.h"
