// The reference of a preference run, as its recipe has it: what it said of every row, once for the
// whole run or, where it follows the model (sync_ref_model), for the steps until it does so again.
// Owns: when it follows, and that it is asked then. Never: the pass over the data
// (reference_table.h), its weights (optim/trailing_weights.h).
#pragma once

#include <cstdint>
#include <vector>

#include "strata/train/recipes/reference_table.h"

namespace strata::train {

class Reference {
 public:
  // Asks it, where it stays. Errors: those of ask_reference(). Collective.
  Reference(const BeforeTraining& before, ReferenceQuestion question);

  // [n * rows] of the set: the n numbers of each row, NaN for rows that it was not asked about.
  const std::vector<double>& of(Split split) const {
    return split == Split::kTrain ? table_.train : table_.eval;
  }
  // Implement Recipe's methods of these names. They do nothing for a reference that stays.
  void begin(int64_t step);
  bool end_step(int64_t step, const StopRequest& asked);

 private:
  // Asks about the rows used from step `first`, counted from 0, until it moves again.
  bool ask_about_steps_behind(int64_t first, const StopRequest& asked);
  bool stays() const { return before_.trainee.reference == nullptr; }

  BeforeTraining before_;
  ReferenceQuestion question_;
  ReferenceTable table_;
  bool is_told_ = false;
};

}  // namespace strata::train
