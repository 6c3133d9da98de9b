#include "strata/libtorch/precompiled.h"
