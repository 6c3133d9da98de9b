// Direct preference optimisation beside the loop: what the model that training starts from thinks
// of every answer, and what a head must know of a micro-batch of pairs. Owns: the pass over the
// data that asks that model, before the first step. Never: the losses (nn/preference_loss.h).
#pragma once

#include <functional>
#include <vector>

#include "strata/config/run_config.h"
#include "strata/data/batch.h"
#include "strata/nn/preference_loss.h"
#include "strata/train/assemble.h"
#include "strata/train/datasets.h"

namespace strata::train {

// The reference as a table: no second model is in memory, at any time.
struct Preferences {
  nn::PreferenceOptions options;
  bool disable_dropout = true;
  // [2 * rows]: log-probabilities of the preferred answer and of the other, of each row.
  std::vector<double> train, eval;
};

// The file in output_dir in which a resumed run finds them again: the format of safetensors under
// another name, because loaders take every *.safetensors of a folder for weights.
inline constexpr const char* kReferenceFile = "reference_log_probs.table";

struct ReferenceCalls {
  // Told while the model is asked: what of, rows done, their part of all.
  std::function<void(const std::string&, int64_t, double)> progress = {};
  bool is_kept = true;  // write kReferenceFile, and look for it where the run is resumed
  std::vector<std::string>* notes = nullptr;  // what the person who started the run should know
};

// Requires: the weights are those that training starts from. Errors: those of evaluation; IoError
// where the file cannot be written. Collective.
Preferences ask_reference(const config::RunConfig& config, Trainee& trainee,
                          const Datasets& datasets, const ReferenceCalls& calls);

// Of the micro-batch's rows. Empty `reference`: the documents are only summed.
nn::Preference pairs_of(const data::MicroBatch& batch, const nn::PreferenceOptions& options,
                        const std::vector<double>& reference);

// Trained tokens of the preferred answers.
int64_t num_chosen_targets(const data::MicroBatch& batch);

}  // namespace strata::train
