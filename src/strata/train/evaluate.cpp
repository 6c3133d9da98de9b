#include "strata/train/evaluate.h"

#include "strata/data/collate.h"
#include "strata/data/sampler.h"
#include "strata/nn/expert_balance.h"
#include "strata/train/batch_tensors.h"

namespace strata::train {

namespace {

struct BatchOutcome {
  double mean_loss;
  Figures figures;  // of this rank
};

BatchOutcome evaluate_batch(const data::MicroBatch& rows, const config::TrainConfig& settings,
                            Trainee& trainee, const Preferences* preferences) {
  nn::LossSums sums;
  nn::ForwardContext context;
  context.sums = &sums;
  nn::ExpertBalance balance(/*scale=*/0);
  const Balancing& balancing = trainee.balancing;
  if (balancing.is_measured()) context.balance = &balance;
  context.label_smoothing = static_cast<float>(settings.label_smoothing_factor);
  std::optional<nn::Preference> pairs;
  const auto num_pairs = static_cast<double>(rows.rows.size());
  if (preferences != nullptr) {
    pairs = pairs_of(rows, preferences->options, preferences->eval);
    const int64_t chosen = std::max<int64_t>(num_chosen_targets(rows), 1);
    pairs->pairs_per_chosen_token = num_pairs / static_cast<double>(chosen);
    context.preference = &*pairs;
  }
  trainee.executor->evaluate(to_tensors(rows, trainee.store->options().device), context);
  if (pairs) return {sums.loss / num_pairs, figures_of(sums, *pairs)};
  const double tokens = static_cast<double>(std::max<int64_t>(sums.tokens, 1));
  BatchOutcome outcome{sums.loss / tokens, figures_of(sums)};
  if (!balancing.is_measured()) return outcome;
  outcome.mean_loss += balancing.weight() * balance.loss();
  outcome.figures.push_back(figure_of(balance));
  return outcome;
}

}  // namespace

std::optional<EvalSums> evaluate_dataset(const data::TokenStore& dataset,
                                         const config::TrainConfig& settings, Trainee& trainee,
                                         const Preferences* preferences,
                                         const StopRequest& is_asked_to_stop) {
  comm::Group& world = *trainee.store->mesh().world;
  const data::EvalSampler sampler(static_cast<int64_t>(dataset.size()),
                                  settings.per_device_eval_batch_size, world.size(),
                                  settings.dataloader_drop_last);
  double weighted_loss = 0, num_examples = 0;
  std::vector<Figures> batches;
  for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
    if (is_any_asked(is_asked_to_stop, world)) return std::nullopt;
    const data::EvalBatch rows = sampler.batch(world.rank(), i);
    std::vector<data::ExampleView> examples;
    for (int64_t row : rows.rows) examples.push_back(dataset[static_cast<size_t>(row)]);
    const BatchOutcome outcome =
        evaluate_batch(data::collate(examples, rows.rows, trainee.model->decoder_start_id()),
                       settings, trainee, preferences);
    weighted_loss += outcome.mean_loss * static_cast<double>(rows.num_real);
    num_examples += static_cast<double>(rows.num_real);
    batches.push_back(outcome.figures);
  }

  std::vector<double> sums{weighted_loss, num_examples};
  sum_over_ranks(world, sums, batches);
  EvalSums result;
  result.mean_loss = sums[0] / std::max(sums[1], 1.0);
  result.num_batches = sampler.batches_per_rank();
  for (const Figures& figures : batches) result.figures.add(figures);
  return result;
}

}  // namespace strata::train
