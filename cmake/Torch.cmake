# libtorch from TORCH_DIR (a folder that holds include/ and lib/), by default the wheel in .venv.
# Written by hand instead of find_package(Torch): that searches for CUDA, MKL and Python packages
# which a build against the wheel does not need.
set(TORCH_DIR "" CACHE PATH "folder with libtorch's include/ and lib/")
if(NOT TORCH_DIR AND DEFINED ENV{TORCH_DIR})
  set(TORCH_DIR $ENV{TORCH_DIR})
endif()
if(NOT TORCH_DIR AND STRATA_CUDA)
  # What `tools/prepare cuda` unpacks: headers and libraries, which need no GPU to link against.
  set(TORCH_DIR ${CMAKE_SOURCE_DIR}/.cache/cuda/torch)
endif()
if(NOT TORCH_DIR)
  file(GLOB candidates ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(candidates)
    list(GET candidates 0 TORCH_DIR)
  endif()
endif()
foreach(part include/ATen/ATen.h lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS "${TORCH_DIR}/${part}")
    message(FATAL_ERROR "TORCH_DIR: found no libtorch in '${TORCH_DIR}', expected ${part}; "
                        "run `make build`, or pass -DTORCH_DIR=<folder of libtorch>")
  endif()
endforeach()
message(STATUS "libtorch: ${TORCH_DIR}")

add_library(torch::fmt INTERFACE IMPORTED)
target_include_directories(torch::fmt SYSTEM INTERFACE ${TORCH_DIR}/include)

# By their files, whose folder CMake then writes into the RPATH of what it builds.
add_library(torch::torch INTERFACE IMPORTED)
target_include_directories(torch::torch SYSTEM INTERFACE
  ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(torch::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(torch::torch INTERFACE
  ${TORCH_DIR}/lib/libtorch_cpu.so ${TORCH_DIR}/lib/libc10.so)
if(EXISTS ${TORCH_DIR}/lib/libtorch_cuda.so)
  # Nothing names a symbol of theirs; they register themselves when they are loaded.
  target_link_libraries(torch::torch INTERFACE -Wl,--no-as-needed
    ${TORCH_DIR}/lib/libtorch_cuda.so ${TORCH_DIR}/lib/libc10_cuda.so -Wl,--as-needed)
endif()
