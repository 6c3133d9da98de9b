// What surrounds a launch: nothing here. tests/emulated_gpu has another file of this name.
#pragma once

struct CUstream_st;

namespace emulation {

struct AroundLaunch {
  AroundLaunch(const char* /*name*/, CUstream_st* /*stream*/) {}
};

}  // namespace emulation
