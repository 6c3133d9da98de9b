#include "strata/train/evaluate.h"

#include "strata/data/collate.h"
#include "strata/data/sampler.h"
#include "strata/train/batch_tensors.h"

namespace strata::train {

EvalSums evaluate_dataset(const data::Dataset& dataset, int64_t batch_size, Trainee& trainee) {
  comm::Group& world = *trainee.store->mesh().world;
  const data::EvalSampler sampler(static_cast<int64_t>(dataset.rows.size()), batch_size,
                                  world.size());
  // Weighted loss, real examples, correct, entropy, trained tokens.
  at::Tensor sums = at::zeros({5}, at::kDouble);
  double* s = sums.data_ptr<double>();
  for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
    const data::EvalBatch rows = sampler.batch(world.rank(), i);
    std::vector<const data::Example*> examples;
    for (int64_t row : rows.rows) examples.push_back(&dataset.rows[static_cast<size_t>(row)]);
    nn::LossSums batch_sums;
    nn::ForwardContext context;
    context.sums = &batch_sums;
    const nn::Batch batch =
        to_tensors(data::collate(examples, rows.rows), trainee.store->options().device);
    trainee.executor->evaluate(batch, context);
    const double tokens = static_cast<double>(std::max<int64_t>(batch_sums.tokens, 1));
    s[0] += batch_sums.loss / tokens * static_cast<double>(rows.num_real);
    s[1] += static_cast<double>(rows.num_real);
    s[2] += batch_sums.correct;
    s[3] += batch_sums.entropy;
    s[4] += static_cast<double>(batch_sums.tokens);
  }
  world.all_reduce(sums)->wait();
  EvalSums result;
  result.mean_loss = s[0] / std::max(s[1], 1.0);
  result.accuracy = s[2] / std::max(s[4], 1.0);
  result.mean_entropy = s[3] / std::max(s[4], 1.0);
  result.num_batches = sampler.batches_per_rank();
  return result;
}

}  // namespace strata::train
