#include "strata/train/evaluate.h"

#include "strata/data/collate.h"
#include "strata/data/sampler.h"
#include "strata/train/batch_tensors.h"

namespace strata::train {

std::optional<EvalSums> evaluate_dataset(const data::TokenStore& dataset,
                                         const config::TrainConfig& settings, Trainee& trainee,
                                         const StopRequest& is_asked_to_stop) {
  comm::Group& world = *trainee.store->mesh().world;
  const data::EvalSampler sampler(static_cast<int64_t>(dataset.size()),
                                  settings.per_device_eval_batch_size, world.size(),
                                  settings.dataloader_drop_last);
  // Weighted loss, real examples; then correct, entropy and trained tokens of each batch.
  at::Tensor sums = at::zeros({2 + 3 * sampler.batches_per_rank()}, at::kDouble);
  double* s = sums.data_ptr<double>();
  for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
    if (is_any_asked(is_asked_to_stop, world)) return std::nullopt;
    const data::EvalBatch rows = sampler.batch(world.rank(), i);
    std::vector<data::ExampleView> examples;
    for (int64_t row : rows.rows) examples.push_back(dataset[static_cast<size_t>(row)]);
    nn::LossSums batch_sums;
    nn::ForwardContext context;
    context.sums = &batch_sums;
    context.label_smoothing = static_cast<float>(settings.label_smoothing_factor);
    const nn::Batch batch =
        to_tensors(data::collate(examples, rows.rows, trainee.model->decoder_start_id()),
                   trainee.store->options().device);
    trainee.executor->evaluate(batch, context);
    const double tokens = static_cast<double>(std::max<int64_t>(batch_sums.tokens, 1));
    s[0] += batch_sums.loss / tokens * static_cast<double>(rows.num_real);
    s[1] += static_cast<double>(rows.num_real);
    double* of_batch = s + 2 + 3 * i;
    of_batch[0] = batch_sums.correct;
    of_batch[1] = batch_sums.entropy;
    of_batch[2] = static_cast<double>(batch_sums.tokens);
  }
  world.all_reduce(sums)->wait();
  EvalSums result;
  result.mean_loss = s[0] / std::max(s[1], 1.0);
  result.num_batches = sampler.batches_per_rank();
  const double batches = static_cast<double>(std::max<int64_t>(result.num_batches, 1));
  for (int64_t i = 0; i < result.num_batches; ++i) {
    const double* of_batch = s + 2 + 3 * i;
    const double tokens = std::max(of_batch[2], 1.0);
    result.accuracy += of_batch[0] / tokens / batches;
    result.mean_entropy += of_batch[1] / tokens / batches;
  }
  return result;
}

}  // namespace strata::train
