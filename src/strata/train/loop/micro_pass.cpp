#include "strata/train/loop/micro_pass.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "strata/comm/agreement.h"
#include "strata/nn/attention/sequence_parallel.h"
#include "strata/nn/experts/expert_balance.h"
#include "strata/train/loop/batch_tensors.h"
#include "strata/train/loop/embedding_noise.h"

namespace strata::train {
namespace {

nn::Batch batch_of(const data::MicroBatch& rows, const Trainee& trainee) {
  nn::Batch batch = to_tensors(rows, trainee.store->options().device);
  const comm::Mesh& mesh = trainee.store->mesh();
  return mesh.sequence ? nn::part_of(batch, *mesh.sequence) : batch;
}

BesidePass beside(Trainee& trainee, Split split) {
  return {.look = [&trainee, split](
                      const data::MicroBatch& rows,
                      nn::Preference& documents) { look_at(trainee, split, rows, documents); },
          .world = *trainee.store->mesh().world};
}

// What is measured during a pass: its context points here, so that this must outlive it.
struct Measurement {
  Measurement(Trainee& trainee, Split split, std::unique_ptr<Objective> objective_in,
              double balance_scale, nn::ForwardContext& context)
      : objective(std::move(objective_in)), balancing(trainee.balancing) {
    context.head.sums = &sums;
    if (balancing.is_measured()) {
      context.balance = &balance.emplace(balance_scale, trainee.store->mesh().sequence.get());
    }
    objective->look_beside(beside(trainee, split));
    objective->ask(context);
  }

  MicroPass read() {
    MicroPass pass{.loss = sums.loss,
                   .num_losses = objective->num_losses(sums),
                   .figures = objective->figures(sums),
                   .tally = objective->tally()};
    if (balance) pass.figures.push_back(figure_of(*balance, balancing.weight()));
    return pass;
  }

  std::unique_ptr<Objective> objective;
  const Balancing& balancing;
  nn::LossSums sums;
  std::optional<nn::ExpertBalance> balance;
};

}  // namespace

double MicroPass::mean_loss() const {
  double mean = loss / std::max(num_losses, 1.0);
  for (const Figure& figure : figures) {
    if (figure.loss_weight != 0) mean += figure.loss_weight * figure.mean();
  }
  return mean;
}

MicroPass train_batch(const config::RunConfig& config, Trainee& trainee, const Recipe& recipe,
                      const data::MicroBatch& rows, const StepPlace& place) {
  nn::ForwardContext context;
  context.training = true;
  context.disable_dropout = recipe.disables_dropout();
  context.head.loss_scale =
      static_cast<float>(place.loss_scale / std::max(place.counts.losses, 1.0));
  context.draw = {.seed = config.train.seed,
                  .step = place.step,
                  .micro_step = static_cast<int64_t>(place.micro_step)};
  context.head.label_smoothing = static_cast<float>(config.train.label_smoothing_factor);
  context.embedding_noise = embedding_noise(config, rows.row_tokens);
  Measurement measurement(trainee, Split::kTrain,
                          recipe.objective(rows, Split::kTrain, place.counts),
                          trainee.balancing.scale(place.loss_scale, place.micro_steps,
                                                  trainee.store->mesh().data_parallel_size()),
                          context);
  trainee.executor->train(batch_of(rows, trainee), context,
                          /*first_micro_step=*/place.micro_step == 0,
                          /*last_micro_step=*/place.micro_step + 1 == place.micro_steps);
  return measurement.read();
}

void look_at(Trainee& trainee, Split split, const data::MicroBatch& rows,
             nn::Preference& documents) {
  nn::LossSums sums;
  nn::ForwardContext context;
  context.head.sums = &sums;
  context.head.preference = &documents;
  trainee.executor->evaluate(
      batch_of(rows, trainee), context,
      split == Split::kTrain ? shard::Products::kOfTraining : shard::Products::kOfEvaluation);
}

MicroPass evaluate_batch(const config::RunConfig& config, Trainee& trainee, const Recipe& recipe,
                         const data::MicroBatch& rows, Split split) {
  nn::ForwardContext context;
  context.head.label_smoothing = static_cast<float>(config.train.label_smoothing_factor);
  Measurement measurement(trainee, split, recipe.objective(rows, split, recipe.count(rows)),
                          /*balance_scale=*/0, context);
  trainee.executor->evaluate(batch_of(rows, trainee), context);
  MicroPass pass = measurement.read();
  if (const auto& sequence = trainee.store->mesh().sequence) {
    double sums[2] = {pass.loss, pass.num_losses};
    comm::sum_over_ranks(*sequence, sums);
    pass.loss = sums[0];
    pass.num_losses = sums[1];
  }
  // The reference divides a smoothed loss by the number of trained tokens as it is, the plain one
  // by at least 1.
  if (context.head.label_smoothing > 0 && pass.num_losses == 0) {
    pass.loss = std::numeric_limits<double>::quiet_NaN();
  }
  return pass;
}

}  // namespace strata::train
