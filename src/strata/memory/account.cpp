#include "strata/memory/account.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace strata::memory {

Amounts Amounts::operator-(const Amounts& b) const {
  Amounts difference = *this;
  for (size_t k = 0; k < bytes.size(); ++k) difference.bytes[k] -= b.bytes[k];
  return difference;
}

int64_t Amounts::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

const char* name_of(MemoryKind kind) {
  static constexpr const char* kNames[kNumMemoryKinds] = {
      "runtime",     "parameters", "gradients",     "optimizer",    "slots",
      "activations", "logits",     "communication", "layer inputs", "snapshot"};
  return kNames[static_cast<size_t>(kind)];
}

std::optional<int64_t> Account::take(int64_t bytes) {
  const std::optional<int64_t> offset = arena_.take(bytes);
  if (!offset) return offset;
  const MemoryKind kind = current_memory_kind;
  blocks_.insert_or_assign(*offset, Block{kind, bytes});
  in_use_[kind] += bytes;
  total_ += bytes;
  ++num_blocks_taken_[kind];
  note_peak();
  return offset;
}

void Account::give_back(int64_t offset) {
  arena_.give_back(offset);
  const auto block = blocks_.find(offset);
  in_use_[block->second.kind] -= block->second.bytes;
  total_ -= block->second.bytes;
  blocks_.erase(block);
}

void Account::keep_elsewhere(const std::vector<MemoryKind>& kinds) {
  for (MemoryKind kind : kinds) is_elsewhere_[static_cast<size_t>(kind)] = true;
}

void Account::note_peak() {
  high_water_ = std::max(high_water_, total_);
  Phase& phase = phases_[phase_];
  phase.resident_bytes = std::max(phase.resident_bytes, arena_.resident_bytes());
  if (total_ <= phase.peak_bytes) return;
  phase.peak_bytes = total_;
  phase.at_peak = in_use_;
}

int64_t Account::take_high_water() { return std::exchange(high_water_, total_); }

void Account::begin_phase(const std::string& name) {
  const auto found =
      std::ranges::find_if(phases_, [&](const Phase& phase) { return phase.name == name; });
  phase_ = static_cast<size_t>(found - phases_.begin());
  if (found == phases_.end()) phases_.push_back({name, {}, 0, 0});
  note_peak();
}

std::vector<Phase> Account::phases() const {
  std::vector<Phase> used;
  for (const Phase& phase : phases_) {
    if (phase.peak_bytes > 0) used.push_back(phase);
  }
  return used;
}

Phase Account::peak() const {
  Phase peak = *std::ranges::max_element(phases_, {}, &Phase::peak_bytes);
  for (const Phase& phase : phases_) {
    peak.resident_bytes = std::max(peak.resident_bytes, phase.resident_bytes);
  }
  return peak;
}

}  // namespace strata::memory
