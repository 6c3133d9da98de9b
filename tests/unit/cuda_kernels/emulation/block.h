// A block of threads of a GPU on one thread of the CPU: each has a stack of its own and gives way
// at barriers and shuffles, in an order that changes from round to round, so that a missing barrier
// shows as a wrong result. Owns: which thread runs. Never: memory of a kernel.
//
// What a GPU would not forgive ends the program with a message: a shuffle without the whole warp,
// threads that wait for different things.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// Of the thread that runs.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

// Runs the whole grid, block by block, and returns when all threads have ended.
void run(const char* name, dim3 blocks, unsigned threads, size_t shared_bytes,
         const std::function<void()>& thread);

// The block's memory of `shared_bytes`, filled with NaN when it starts.
float* dynamic_shared_memory();

// Ends the program and says which thread of which kernel found what.
[[noreturn]] void fail(const char* what);

// For the running thread: waits for the block.
void barrier();
// The bits that the lane `lane ^ lane_mask` of the warp hands over at the same call.
uint64_t exchange(uint64_t bits, unsigned lane_mask);

}  // namespace emulation
