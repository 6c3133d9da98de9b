// What memory is taken for: a label of the calling thread that the allocators of memory/ write down
// with every block. Owns: the list of kinds. Never: memory.
#pragma once

#include <cstdint>

namespace strata {

enum class MemoryKind : uint8_t {
  kRuntime,  // whatever no scope names: data, conversions while loading, temporaries of an update
  kParameters,     // homes: the shards at rest
  kGradients,      // homes of gradients
  kOptimizer,      // moments
  kSlots,          // gathered units and whole gradients
  kActivations,    // what blocks compute, kept or temporary
  kLogits,         // of the chunk that the loss works on
  kCommunication,  // receive buffers of the transport
  kKeptInputs,     // inputs of recomputed blocks that rest elsewhere between the passes
  kSnapshot,       // the copy that a save in the background writes from
};
inline constexpr int kNumMemoryKinds = 10;

inline thread_local MemoryKind current_memory_kind = MemoryKind::kRuntime;

// Names what is taken until the end of the scope.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryKind kind) : before_(current_memory_kind) {
    current_memory_kind = kind;
  }
  ~MemoryScope() { current_memory_kind = before_; }
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryKind before_;
};

}  // namespace strata
