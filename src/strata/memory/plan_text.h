// Memory as tables of text. Never: prints.
#pragma once

#include <string>
#include <vector>

#include "strata/memory/plan.h"

namespace strata::memory {

// Powers of 1000: "812.4 MB", "19.61 GB".
std::string size_text(int64_t bytes);

// One column a phase, one row a kind, each as it was when the phase used most. `process_bytes`:
// what the process holds beside its tensors.
std::string phase_table(const std::vector<Phase>& phases, int64_t process_bytes);

// What a rank holds at the largest: tensors, what the allocator keeps between them, the process.
int64_t peak_bytes(const Phase& peak, int64_t process_bytes);

// "peak 812.4 MB in backward: parameters 120.2 MB, ...".
std::string peak_line(const Phase& peak, int64_t process_bytes);

// One line a step with the most that was in use during it.
std::string schedule_text(const std::vector<StepMemory>& schedule);

}  // namespace strata::memory
