#include "strata/train/loop/evaluate.h"

#include <cmath>
#include <limits>

#include "strata/comm/liveness.h"
#include "strata/data/collate.h"
#include "strata/data/sampler.h"
#include "strata/train/datasets.h"
#include "strata/train/loop/micro_pass.h"

namespace strata::train {

std::optional<EvalSums> evaluate_dataset(const data::TokenStore& dataset,
                                         const config::RunConfig& config, Trainee& trainee,
                                         const Recipe& recipe, const StopRequest& is_asked_to_stop,
                                         Split split) {
  const comm::Mesh& mesh = trainee.store->mesh();
  comm::Group& world = *mesh.world;
  const data::EvalSampler sampler = evaluation_sampler(config, dataset, mesh.data_parallel_size());
  double weighted_loss = 0, num_examples = 0, num_left_out = 0, num_empty = 0;
  std::vector<Figures> batches;
  std::vector<double> tally;
  for (int64_t i = 0; i < sampler.batches_per_rank(); ++i) {
    if (is_any_asked(is_asked_to_stop, world)) return std::nullopt;
    const data::EvalBatch rows = sampler.batch(mesh.data_parallel_rank(), i);
    data::MicroBatch batch =
        data::collate_rows(dataset, rows.rows, trainee.model->decoder_start_id());
    batch.num_real_rows = rows.num_real;
    MicroPass pass = evaluate_batch(config, trainee, recipe, batch, split);
    // Ranks of a sequence group have the same rows.
    const double counted = static_cast<double>(rows.num_real) / mesh.sequence_size();
    if (const double loss = pass.mean_loss(); std::isfinite(loss)) {
      weighted_loss += loss * counted;
      num_examples += counted;
    } else if (rows.num_real > 0) {
      num_left_out += 1.0 / mesh.sequence_size();
      if (pass.num_losses == 0) num_empty += 1.0 / mesh.sequence_size();
    }
    tally.resize(pass.tally.size());
    for (size_t k = 0; k < tally.size(); ++k) tally[k] += pass.tally[k] / mesh.sequence_size();
    batches.push_back(std::move(pass.figures));
  }

  std::vector<double> sums{weighted_loss, num_examples, num_left_out, num_empty};
  const size_t num_sums = sums.size();
  sums.insert(sums.end(), tally.begin(), tally.end());
  sum_over_ranks(world, sums, batches);
  comm::require_alive(mesh);  // what was summed may be of weights that never came
  EvalSums result;
  result.num_left_out = std::llround(sums[2]);
  result.num_empty = std::llround(sums[3]);
  const bool has_loss = sums[1] > 0 || result.num_left_out == 0;
  result.mean_loss =
      has_loss ? sums[0] / std::max(sums[1], 1.0) : std::numeric_limits<double>::quiet_NaN();
  result.num_batches = sampler.batches_per_rank();
  for (const Figures& figures : batches) result.figures.add(figures);
  result.figures.add(recipe.figures_of_all(std::span(sums).subspan(num_sums)));
  return result;
}

}  // namespace strata::train
