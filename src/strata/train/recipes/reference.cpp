#include "strata/train/recipes/reference.h"

#include <exception>
#include <utility>

#include "strata/base/phases.h"
#include "strata/optim/trailing_weights.h"
#include "strata/train/loop/broken_weight.h"

namespace strata::train {
namespace {

constexpr const char* kAskingPhase = "evaluating the reference";

// Until its end the model has the reference's weights.
class AsReference {
 public:
  explicit AsReference(Trainee& trainee) : trainee_(trainee) { exchange(); }
  // With an error on its way, which is what ends the run: weights are kept nowhere any more.
  ~AsReference() {
    try {
      end();
    } catch (const std::exception&) {
    }
  }
  void end() {
    if (!std::exchange(has_ended_, true)) exchange();
  }
  AsReference(const AsReference&) = delete;
  AsReference& operator=(const AsReference&) = delete;

 private:
  void exchange() {
    trainee_.reference->exchange();
    trainee_.executor->parameters_changed();
  }

  Trainee& trainee_;
  bool has_ended_ = false;
};

}  // namespace

Reference::Reference(const BeforeTraining& before, ReferenceQuestion question)
    : before_(before), question_(std::move(question)) {
  if (stays()) table_ = ask_reference(before_, question_);
}

bool Reference::ask_about_steps_behind(int64_t first, const StopRequest& asked) {
  AsReference reference(before_.trainee);
  const bool is_asked =
      ask_reference_of_steps(before_, question_,
                             {.first = first,
                              .last = first + before_.config.preference.ref_model_sync_steps,
                              .asked_to_stop = asked},
                             table_);
  reference.end();
  return is_asked;
}

void Reference::begin(int64_t step) {
  if (stays()) return;
  const config::PreferenceConfig& config = before_.config.preference;
  before_.set_phase(kAskingPhase);
  // Of all rows that were asked about together, so that they get the same numbers to the bit.
  ask_about_steps_behind(step - step % config.ref_model_sync_steps, {});
  if (std::exchange(is_told_, true)) return;
  before_.progress = [](const std::string&, int64_t, double) {};
  before_.notes.push_back(fmt::format(
      "reference: follows the model every {} steps ({} of its weights) and is then evaluated on "
      "the rows of the next ones; its weights are kept in addition to the model's",
      config.ref_model_sync_steps, config.ref_model_mixup_alpha));
}

bool Reference::end_step(int64_t step, const StopRequest& asked) {
  const config::PreferenceConfig& config = before_.config.preference;
  if (stays() || step % config.ref_model_sync_steps != 0) return true;
  // Weights that are not finite are given up once enough batches show it; the reference is not, nor
  // could it be told of.
  if (!find_broken_weight(*before_.trainee.store)) {
    before_.trainee.reference->follow(config.ref_model_mixup_alpha);
  }
  before_.set_phase(std::string(kAskingAgainPhase));
  const bool is_asked = ask_about_steps_behind(step, asked);
  before_.set_phase(std::string(kTrainingPhase));
  return is_asked;
}

}  // namespace strata::train
