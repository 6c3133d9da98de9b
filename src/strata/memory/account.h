// What memory was taken for, phase by phase: the same record for memory that a plan only imagines
// and for memory that a run really takes. Owns: the sums and their peaks. Never: memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "strata/libtorch/memory_kind.h"
#include "strata/memory/arena.h"

namespace strata::memory {

// Bytes, or numbers of blocks, by MemoryKind.
struct Amounts {
  std::array<int64_t, kNumMemoryKinds> bytes{};
  int64_t& operator[](MemoryKind kind) { return bytes[static_cast<size_t>(kind)]; }
  int64_t operator[](MemoryKind kind) const { return bytes[static_cast<size_t>(kind)]; }
  Amounts operator-(const Amounts& b) const;
  int64_t total() const;
};

// "parameters", ...
const char* name_of(MemoryKind kind);

// One part of a run, such as "forward".
struct Phase {
  std::string name;
  Amounts at_peak;             // at the moment when most was in use
  int64_t peak_bytes = 0;      // at_peak.total()
  int64_t resident_bytes = 0;  // pages that the process held at its largest: in use or free again
};

// Threads: one at a time.
class Account {
 public:
  explicit Account(int64_t capacity) : arena_(capacity) {}

  // A block of the calling thread's current_memory_kind; see Arena::take.
  std::optional<int64_t> take(int64_t bytes);
  void give_back(int64_t offset);
  std::vector<Range> trim() { return arena_.trim(); }

  // Memory of these kinds rests elsewhere, in files or beside an accelerator: it is summed up apart
  // and is in no phase.
  void keep_elsewhere(const std::vector<MemoryKind>& kinds);
  bool is_elsewhere(MemoryKind kind) const { return is_elsewhere_[static_cast<size_t>(kind)]; }
  void note_elsewhere(MemoryKind kind, int64_t bytes) { elsewhere_[kind] += bytes; }
  const Amounts& elsewhere() const { return elsewhere_; }

  // Starts a phase; one of the same name goes on.
  void begin_phase(const std::string& name);
  const std::string& phase() const { return phases_[phase_].name; }
  // In the order in which they first began. Phases in which nothing was ever in use are left out.
  std::vector<Phase> phases() const;
  // The phase that used most, as it was then; `resident_bytes` is the largest of all.
  Phase peak() const;

  int64_t bytes_in_use() const { return total_; }
  int64_t resident_bytes() const { return arena_.resident_bytes(); }
  // Blocks taken since the start, by kind.
  const Amounts& num_blocks_taken() const { return num_blocks_taken_; }
  // The most that was in use since the last call.
  int64_t take_high_water();

 private:
  struct Block {
    MemoryKind kind;
    int64_t bytes;
  };
  void note_peak();

  Arena arena_;
  std::unordered_map<int64_t, Block> blocks_;
  Amounts in_use_;
  Amounts elsewhere_;
  std::array<bool, kNumMemoryKinds> is_elsewhere_{};
  int64_t total_ = 0;
  int64_t high_water_ = 0;
  Amounts num_blocks_taken_;
  std::vector<Phase> phases_{{"start", {}, 0, 0}};
  size_t phase_ = 0;
};

}  // namespace strata::memory
