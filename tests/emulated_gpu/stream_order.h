// What orders the work of streams, and with it whether two accesses to memory can happen at the
// same time on a GPU. Work runs here at once, in the order in which the host enqueues it; what a
// GPU promises is less: the order within a stream, an event behind which another stream waits, a
// host that waits. Every operation has a clock of its stream, and knows for each stream up to which
// clock it comes after that stream's work; an access that does not come after a conflicting one
// ends the program with the names of both. All threads of the host count as one. With
// EMULATED_GPU_STRICT memory that nothing has written may not be used either: for runs in which
// libtorch keeps no memory for later (PYTORCH_NO_CUDA_MEMORY_CACHING=1), where also every end of a
// tensor is one of a block. EMULATED_GPU_TRACE prints every operation with what it touches, and
// every time that the host waits. Owns: the clocks. Never: what an operation computes.
#pragma once

#include <cuda_runtime_api.h>

#include "memory.h"

namespace emulated_gpu {

// Up to which clock of every stream.
struct Clocks {
  std::array<Clock, kMostStreams> of{};
  void join(const Clocks& other);
  bool covers(const Clocks& other) const;
};

// Copies and collectives move what lies between tensors, too; others use what they read.
enum class Reading { kUses, kMoves };

// Something enqueued on a stream. While it lives, the machine runs nothing else.
class Operation {
 public:
  // `name` must outlive the program.
  Operation(const char* name, cudaStream_t stream, Reading reading = Reading::kUses);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Memory that is not the GPU's is its owner's affair.
  void reads(const void* from, size_t size_bytes) { touches(from, size_bytes, false); }
  void writes(const void* to, size_t size_bytes) { touches(to, size_bytes, true); }

 private:
  void touches(const void* at, size_t size_bytes, bool writes);
  void touches(Block& block, const void* at, size_t size_bytes, bool writes);

  std::unique_lock<std::recursive_timed_mutex> lock_;
  int stream_;
  Clock clock_;
  Reading reading_;
  Operation* outer_;
  size_t read_bytes_ = 0, written_bytes_ = 0;  // once each, in whole cells
  friend void kernel_touches(Block&, const void*, size_t, bool);
};

// By the kernel that runs.
void kernel_touches(Block& block, const void* at, size_t size_bytes, bool writes);

// A stream created later may take its place, and comes after what it had.
void forget_stream(cudaStream_t stream);
// As EMULATED_GPU_STRICT, which says how it starts.
void set_strict(bool is_strict);
// What stream `stream` has by now.
Clocks enqueued_on(cudaStream_t stream);
void stream_waits(cudaStream_t stream, const Clocks& for_these);
void host_waits(const Clocks& for_these);
void host_waits_for_stream(cudaStream_t stream);
void host_waits_for_all();
bool host_knows(const Clocks& of_these);

}  // namespace emulated_gpu
