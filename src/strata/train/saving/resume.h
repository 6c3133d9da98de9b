// Finds a checkpoint that is whole and fills weights and optimizer from it. Owns: the fall-back
// from a damaged checkpoint to the one before. Never: what the loop keeps in progress.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/checkpoint/sharded.h"
#include "strata/report/trainer_state.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

// Takes what lies beside the tensors; may throw Json::exception for a field that is not there.
using ApplyProgress = std::function<void(const report::TrainerState& state, const Json& progress)>;

// Before hours go into data and a reference: what the look for a checkpoint alone finds wrong, that
// there is none, or that it is of another recipe or optimizer. Returns what was repaired, a
// sentence each. On rank 0, once the output folder is this run's.
std::vector<std::string> look_for_checkpoint(const config::TrainConfig& config,
                                             const std::string& settings_text);

// Tries the candidates (checkpoint/folders.h) in turn; `say` gets a line for each that could not be
// used. Throws the first one's error when none can, which names settings that are others than those
// of the run that saved it; `settings_text`: this run's. Returns the folder. Collective over the
// world.
std::filesystem::path resume(const config::TrainConfig& config, const std::string& settings_text,
                             Trainee& trainee, const ApplyProgress& apply,
                             const std::function<void(const std::string&)>& say);

// The same from the first of rank 0's `candidates` that is whole. Returns it; nothing when there is
// none. Collective over the world.
std::optional<std::filesystem::path> return_to(
    const std::function<std::vector<std::filesystem::path>()>& candidates, Trainee& trainee,
    const ApplyProgress& apply, const std::function<void(const std::string&)>& say);

// The weights of one checkpoint, without its optimizer. Throws FormatError where it is damaged,
// which says what there is `otherwise`. Collective over the world.
void load_weights(const std::filesystem::path& folder, Trainee& trainee, const ApplyProgress& apply,
                  const std::string& otherwise);

// Which rows the steps of a run take: what must stay the same for steps to be counted on.
struct DataRows {
  int64_t per_step = 0;  // of all ranks
  int64_t count = 0;     // of the training data
  int64_t wanted = 0;    // of a stream, so many are read where it has them; 0: all
  int64_t seed = 0;      // of their order
  std::string content;   // of the rows themselves, as data::TokenStore::content() has it
};
Json to_json(const DataRows& rows);
// A warning for each of them that was another one in the run whose progress.json this is. Those
// that an older version did not write are not compared.
std::vector<std::string> different_rows(const DataRows& now, const Json& progress);

// What rank 0 says of a run that goes on from `source` at `step` of `max_steps`: where that is, and
// which settings that shape what is learnt are others than those of the run that saved it, of which
// settings.json there tells; a state of another tool has none, nor have older versions all of them.
// `settings_text`: this run's, as in that file. Throws ConfigError where the optimizer is another
// one: the state of one means nothing to another, though their tensors may have the same names.
std::vector<std::string> resume_lines(const std::filesystem::path& source, int64_t step,
                                      int64_t max_steps, const std::string& settings_text);

// A warning where a file of the tokenizer, or a template, that this run writes beside its model is
// another one than in the checkpoint `source`: the names of the settings may be the same, or be
// those of a base that does not matter any more. Rank 0's to say.
std::vector<std::string> different_tokenizer(const std::filesystem::path& source,
                                             const checkpoint::SmallFiles& companions);

// ConfigError where the head that this run writes beside its model tells other labels, or the same
// in another order or for another loss, than that of the checkpoint `source`: its rows would stand
// for others.
void require_same_labels(const std::filesystem::path& source,
                         const checkpoint::SmallFiles& companions);

// What a checkpoint made of another tool's state holds beside its tensors: the log history is that
// of a trainer_state.json beside `source`, if there is one; sums since the last log are none. The
// fingerprint of an adapter's base goes with it, unless empty.
checkpoint::SmallFiles fresh_progress(const std::filesystem::path& source, int64_t step,
                                      const std::string& base_fingerprint);

}  // namespace strata::train
