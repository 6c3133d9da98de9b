// What surrounds a launch: it is an operation of its stream, whose accesses are recorded.
#pragma once

#include "running_kernel.h"

namespace emulation {

using AroundLaunch = emulated_gpu::RunningKernel;

}  // namespace emulation
