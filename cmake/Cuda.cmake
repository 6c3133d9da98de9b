# nvcc and NCCL, for -DSTRATA_CUDA=ON (preset `cuda`). Nothing of it needs a GPU or a driver: what
# libtorch's libraries need at run time (cuDNN, cuBLAS, ...) is found beside the torch that runs.
if(NOT EXISTS ${TORCH_DIR}/lib/libtorch_cuda.so)
  message(FATAL_ERROR "TORCH_DIR: found no libtorch_cuda.so in '${TORCH_DIR}/lib', expected the CUDA "
                      "libtorch; run `make cuda`, or pass -DTORCH_DIR=<folder of the torch package>")
endif()
# sm_80: A100 and everything of its family; sm_90: H100, H200; the virtual one for what comes after.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
endif()
# libtorch's own runtime, not a second one in the program.
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
enable_language(CUDA)
# By hand: CMake 3.25 does not know that this compiler has C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
# Four programs of a bundle have the kernels each.
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG --compress-mode=size")
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
find_package(CUDAToolkit REQUIRED)

# NCCL: the header and the library of the wheel that libtorch asks for.
get_filename_component(torch_parent ${TORCH_DIR} DIRECTORY)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${torch_parent}/nvidia/nccl/include REQUIRED)
find_library(NCCL_LIBRARY NAMES libnccl.so.2 nccl HINTS ${torch_parent}/nvidia/nccl/lib REQUIRED)
add_library(cuda::nccl INTERFACE IMPORTED)
target_include_directories(cuda::nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
target_link_libraries(cuda::nccl INTERFACE ${NCCL_LIBRARY})

target_compile_definitions(torch::torch INTERFACE STRATA_WITH_CUDA)
target_include_directories(torch::torch SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(torch::torch INTERFACE CUDA::cudart)
# libtorch's own libraries name others that this machine need not have.
add_link_options(-Wl,--allow-shlib-undefined)
message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION}, NCCL: ${NCCL_LIBRARY}")
