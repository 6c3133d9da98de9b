#include "strata/memory/plan_text.h"

#include <algorithm>

#include <fmt/format.h>

namespace strata::memory {
namespace {

struct Unit {
  const char* name;
  double bytes;
};

Unit unit_for(int64_t bytes) { return bytes >= 10'000'000'000 ? Unit{"GB", 1e9} : Unit{"MB", 1e6}; }

std::string cell(int64_t bytes, const Unit& unit) {
  if (bytes == 0) return fmt::format(" {:>10}", "-");
  return fmt::format(" {:>10.2f}", static_cast<double>(bytes) / unit.bytes);
}

}  // namespace

std::string size_text(int64_t bytes) {
  const Unit unit = unit_for(bytes);
  return fmt::format("{:.2f} {}", static_cast<double>(bytes) / unit.bytes, unit.name);
}

std::string phase_table(const std::vector<Phase>& phases, int64_t process_bytes) {
  int64_t largest = 0;
  for (const Phase& phase : phases) largest = std::max(largest, phase.peak_bytes + process_bytes);
  const Unit unit = unit_for(largest);
  std::string text = fmt::format("{:<14}", unit.name);
  for (const Phase& phase : phases) text += fmt::format(" {:>10}", phase.name);
  text += '\n';
  const auto row = [&](const char* name, auto&& value) {
    bool is_used = false;
    std::string line = fmt::format("{:<14}", name);
    for (const Phase& phase : phases) {
      is_used |= value(phase) > 0;
      line += cell(value(phase), unit);
    }
    if (is_used) text += line + '\n';
  };
  for (int k = 1; k <= kNumMemoryKinds; ++k) {
    // "runtime" last: it also has the process itself.
    const auto kind = static_cast<MemoryKind>(k % kNumMemoryKinds);
    const int64_t more = kind == MemoryKind::kRuntime ? process_bytes : 0;
    row(name_of(kind), [&](const Phase& phase) { return phase.at_peak[kind] + more; });
  }
  row("all in use", [&](const Phase& phase) { return phase.peak_bytes + process_bytes; });
  row("held", [&](const Phase& phase) {
    return std::max(phase.resident_bytes, phase.peak_bytes) + process_bytes;
  });
  return text;
}

int64_t peak_bytes(const Phase& peak, int64_t process_bytes) {
  return std::max(peak.resident_bytes, peak.peak_bytes) + process_bytes;
}

std::string peak_line(const Phase& peak, int64_t process_bytes) {
  std::string text =
      fmt::format("{} at the peak ({}):", size_text(peak_bytes(peak, process_bytes)), peak.name);
  for (int k = 1; k < kNumMemoryKinds; ++k) {
    const auto kind = static_cast<MemoryKind>(k);
    if (peak.at_peak[kind] == 0) continue;
    text += fmt::format(" {} {},", name_of(kind), size_text(peak.at_peak[kind]));
  }
  const int64_t rest = peak.at_peak[MemoryKind::kRuntime] + process_bytes +
                       std::max<int64_t>(peak.resident_bytes - peak.peak_bytes, 0);
  return text + fmt::format(" runtime {}", size_text(rest));
}

std::string schedule_text(const std::vector<StepMemory>& schedule) {
  int64_t largest = 0;
  for (const StepMemory& step : schedule) largest = std::max(largest, step.peak_bytes);
  const Unit unit = unit_for(largest);
  std::string text;
  for (const StepMemory& step : schedule) {
    text += fmt::format("{} {}  {}\n", cell(step.peak_bytes, unit), unit.name, text_of(step.step));
  }
  return text;
}

}  // namespace strata::memory
