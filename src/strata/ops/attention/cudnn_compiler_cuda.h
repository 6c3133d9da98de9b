// What cuDNN needs to compile its attention. Owns: that question. Never: tensors.
#pragma once

namespace strata::ops::cuda {

// cuDNN compiles its kernels with NVRTC, and NVRTC opens a library of its own, libnvrtc-builtins,
// by its name alone. Beside a torch from Python's packages nothing says where that lies, so cuDNN
// would refuse every shape; `import torch` loads it for the same reason
// (https://github.com/pytorch/pytorch/issues/145580). Loads it from the folder of NVIDIA's
// libraries where libtorch has found cuBLAS; where it is not there, the dynamic linker may know a
// place. Threads: any. Once in a process.
void load_compiler_of_cudnn();

}  // namespace strata::ops::cuda
