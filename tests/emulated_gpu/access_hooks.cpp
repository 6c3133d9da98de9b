// What the compiler calls at every access of a kernel: its instrumentation for data races
// (-fsanitize=thread), of which this takes the run-time library's place.
#include "running_kernel.h"
#include "stream_order.h"

namespace emulated_gpu {
namespace {

// All under machine_mutex(), which a running kernel holds.
bool is_running = false;
Block* last_block = nullptr;

void access(const void* at, size_t size_bytes, bool writes) {
  if (!is_running || !is_of_gpu(at)) return;
  if (last_block == nullptr || !last_block->contains(at)) last_block = block_of(at);
  if (last_block == nullptr) fail("a kernel touches %p, which is no block", at);
  kernel_touches(*last_block, at, size_bytes, writes);
}

}  // namespace

struct RunningKernel::State {
  Operation operation;
  DeviceMemoryOpened opened;
};

RunningKernel::RunningKernel(const char* name, CUstream_st* stream)
    : state_(new State{Operation(name, stream), {}}) {
  is_running = true;
  last_block = nullptr;
}
RunningKernel::~RunningKernel() { is_running = false; }

}  // namespace emulated_gpu

extern "C" {
#define STRATA_HOOKS(bytes)                                                               \
  void __tsan_read##bytes(void* at) { emulated_gpu::access(at, bytes, false); }           \
  void __tsan_write##bytes(void* at) { emulated_gpu::access(at, bytes, true); }           \
  void __tsan_unaligned_read##bytes(void* at) { emulated_gpu::access(at, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* at) { emulated_gpu::access(at, bytes, true); }
STRATA_HOOKS(1)
STRATA_HOOKS(2)
STRATA_HOOKS(4)
STRATA_HOOKS(8)
STRATA_HOOKS(16)
#undef STRATA_HOOKS
void __tsan_read_range(void* at, size_t bytes) { emulated_gpu::access(at, bytes, false); }
void __tsan_write_range(void* at, size_t bytes) { emulated_gpu::access(at, bytes, true); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
