// at::parallel_for is OpenMP of the source that calls it. In one that is compiled without it runs
// on the caller's thread, and keeps whatever is called inside on that thread, too: without a word.
// Owns: that this is an error. tools/check_includes wants it wherever at::parallel_for is called,
// but in the CPU kernels (ops/*_cpu.cpp), whose flags CMake finds by their names.
#pragma once

#ifndef _OPENMP
#error "at::parallel_for needs -fopenmp: name this source in src/strata/CMakeLists.txt"
#endif

#include <ATen/Parallel.h>
