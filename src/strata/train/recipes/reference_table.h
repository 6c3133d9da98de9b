// What the model that training starts from thinks of every answer: a table of a few
// log-probabilities a row, asked for once, before the first step, so that no second model is in
// memory at any time. Owns: that pass over the data, and the file in which a resumed run finds what
// it gave. Never: what a row's numbers are for (dpo.cpp, kto.cpp), a reference that moves
// (reference.h).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strata/nn/preference.h"
#include "strata/train/recipes/recipe.h"

namespace strata::train {

// The file in output_dir in which a resumed run finds what the reference said: the format of
// safetensors under another name, because loaders take every *.safetensors of a folder for weights.
inline constexpr const char* kReferenceFile = "reference_log_probs.table";

// [n * rows] each: the n numbers of each row, NaN for those that no step has taken; `eval` is
// empty without an evaluation.
struct ReferenceTable {
  std::vector<double> train, eval;
};

// A forward pass of a micro-batch, which fills its documents (loop/micro_pass.h). Collective.
using AskModel = std::function<void(const data::MicroBatch&, nn::Preference&)>;

struct ReferenceQuestion {
  std::string noun;                  // of a row, in messages
  std::vector<std::string> numbers;  // of what a row has a log-probability each
  // The log-probabilities of a micro-batch, row after row.
  std::function<std::vector<double>(const data::MicroBatch&, const AskModel&)> ask;
  std::optional<double> ld_alpha = {};  // what log-probabilities of preferences depend on
};

// Errors: FormatError where a log-probability is no number; IoError where the file cannot be
// written. Collective.
ReferenceTable ask_reference(const BeforeTraining& before, const ReferenceQuestion& question);

// A range of the whole run's steps, counted from 0: [first, last).
struct AskedSteps {
  int64_t first = 0, last = 0;
  StopRequest asked_to_stop = {};
};

// The same of the model as it is, about the rows of these steps and, if an evaluation falls into
// them, of its set: nothing is known of others then, nothing is kept in files. After steps of the
// run a log-probability may be no number: whoever learns from it finds so, and may return to a
// checkpoint. False: broken off. Collective.
bool ask_reference_of_steps(const BeforeTraining& before, const ReferenceQuestion& question,
                            const AskedSteps& steps, ReferenceTable& table);

}  // namespace strata::train
