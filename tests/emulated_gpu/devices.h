// Which GPUs the emulated machine shows to this process, and the one that it has opened. Owns: the
// variables that say so. Never: their memory.
#pragma once

#include <vector>

namespace emulated_gpu {

// The numbers that the machine's devices have, without those that CUDA_VISIBLE_DEVICES hides.
const std::vector<int>& devices();
inline int device_count() { return static_cast<int>(devices().size()); }
// EMULATED_GPUS=0: there may be some, and the driver is too old for this CUDA.
bool is_driver_old();

// A call that needs a context opens one on its thread's device: half a gigabyte that another rank's
// process would miss. Ends the program where it has opened another one.
void open_device(int device);
int opened_device();  // negative: none yet

}  // namespace emulated_gpu
