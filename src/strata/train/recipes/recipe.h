// What a recipe makes of passes through the model: what a step's loss is a mean over, what the head
// is asked for, which figures it tells, what must be known before the first step. Owns: that
// interface and the table of those who implement it. Never: the loop (loop/trainer.h), how one pass
// runs (loop/micro_pass.h), the losses (nn/).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "strata/comm/group.h"
#include "strata/config/run_config.h"
#include "strata/data/batch.h"
#include "strata/nn/batch.h"
#include "strata/nn/preference.h"
#include "strata/train/datasets.h"
#include "strata/train/loop/figures.h"
#include "strata/train/loop/stop_signals.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

// Which data set a micro-batch's rows are of.
enum class Split { kTrain, kEval, kSecondEval };

// Counts of a micro-batch, of a step over all micro-batches and ranks, or of an evaluation batch.
struct LossCounts {
  double losses = 0;  // what the loss is a mean over: trained tokens, pairs or answers
  double others = 0;  // whatever else the recipe weighs by
};

// What an objective may do beside the pass of its micro-batch.
struct BesidePass {
  // look_at() of loop/micro_pass.h, for rows of the objective's split. Collective.
  std::function<void(const data::MicroBatch&, nn::Preference&)> look;
  comm::Group& world;
};

// One micro-batch on its way through the model.
class Objective {
 public:
  virtual ~Objective() = default;
  // Before the pass, with the weights as they are. Collective: alike on all ranks.
  virtual void look_beside(const BesidePass& beside) { (void)beside; }
  // Points the context at what the head is to look at. It must outlive the pass.
  virtual void ask(nn::ForwardContext& context) { (void)context; }
  // After the pass: the same names for every micro-batch.
  virtual Figures figures(const nn::LossSums& sums) const = 0;
  // After the pass of an evaluation: sums that figures of the whole set are made of, as many for
  // every batch.
  virtual std::vector<double> tally() const { return {}; }
  // After the pass: what an evaluation's sum of losses is divided by.
  virtual double num_losses(const nn::LossSums& sums) const = 0;
};

// Threads: const methods from any, except for those that run beside begin() or end_step().
class Recipe {
 public:
  virtual ~Recipe() = default;
  virtual LossCounts count(const data::MicroBatch& batch) const = 0;
  virtual bool disables_dropout() const { return false; }
  // `counts`: of all that the micro-batch shares a step or an evaluation's batch with.
  virtual std::unique_ptr<Objective> objective(const data::MicroBatch& batch, Split split,
                                               const LossCounts& counts) const = 0;
  // Before the first step of a run, which `step` others may have gone before, and after every
  // return to a checkpoint. Collective.
  virtual void begin(int64_t step) { (void)step; }
  // Called after `step` steps, before what is due then. False: broken off as a rank was asked to
  // stop; a run that continues from there begins with it. Collective.
  virtual bool end_step(int64_t step, const StopRequest& asked) {
    (void)step, (void)asked;
    return true;
  }
  // Figures from the sum of the tallies of an evaluation's batches on all ranks.
  virtual Figures figures_of_all(std::span<const double> tally) const {
    (void)tally;
    return {};
  }
};

// What a recipe may look at before the first step, while the weights are those that training starts
// from; and how it tells what it does meanwhile.
struct BeforeTraining {
  const config::RunConfig& config;
  Trainee& trainee;
  const Datasets& datasets;
  bool is_kept = true;  // what was found out is for the output folder, and for runs that go on
  std::function<void(const std::string&)> set_phase = [](const std::string&) {};
  // What of, rows done, their part of all.
  std::function<void(const std::string&, int64_t, double)> progress = [](const std::string&,
                                                                         int64_t, double) {};
  std::vector<std::string>& notes;  // what the person who started the run should know
};

// The recipe that the settings name. Errors: those of evaluation and of writing. Collective.
std::unique_ptr<Recipe> make_recipe(const BeforeTraining& before);

}  // namespace strata::train
