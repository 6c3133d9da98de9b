#include "strata/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "strata/base/error.h"
#include "strata/data/random.h"

namespace strata::data {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// As transformers' get_length_grouped_indices: sorted in parts of 50 groups, or in about four.
void group_by_length(std::vector<int64_t>& order, const LengthGroups& groups) {
  const auto count = static_cast<int64_t>(order.size());
  const int64_t part = std::clamp<int64_t>(count / (groups.rows * 4), 1, 50) * groups.rows;
  const auto length = [&](int64_t row) { return groups.lengths[static_cast<size_t>(row)]; };
  auto longest = order.begin();
  for (int64_t begin = 0; begin < count; begin += part) {
    const auto first = order.begin() + begin;
    std::stable_sort(first, order.begin() + std::min(begin + part, count),
                     [&](int64_t a, int64_t b) { return length(a) > length(b); });
    if (length(*first) > length(*longest)) longest = first;
  }
  std::iter_swap(order.begin(), longest);
}

}  // namespace

BatchSampler::BatchSampler(int64_t num_rows, SamplerOptions options)
    : num_rows_(num_rows), options_(std::move(options)) {
  const auto& [batch_size, world_size, seed, strategy, drop_last, groups] = options_;
  if (num_rows < 1) throw ConfigError("data set: found {} rows, expected at least 1", num_rows);
  if (batch_size < 1) {
    throw ConfigError("batch size: found {}, expected at least 1 row per device", batch_size);
  }
  if (world_size < 1) throw ConfigError("world size: found {}, expected at least 1", world_size);
  if (strategy != "random" && strategy != "sequential" && strategy != "group_by_length") {
    throw ConfigError(
        "train_sampling_strategy: found \"{}\", expected \"random\", \"sequential\" or "
        "\"group_by_length\"",
        strategy);
  }
  if (strategy == "group_by_length" &&
      (groups.rows < 1 || static_cast<int64_t>(groups.lengths.size()) != num_rows)) {
    throw InternalError("batch sampler: found {} lengths, expected those of {} rows",
                        groups.lengths.size(), num_rows);
  }
  const int64_t round = batch_size * world_size;
  batches_per_rank_ = drop_last ? num_rows / round : divide_up(num_rows, round);
  if (batches_per_rank_ == 0) {
    throw ConfigError(
        "dataloader_drop_last: found {} rows, expected at least {} ({} batches at once of {} rows "
        "each); use smaller batches or turn it off",
        num_rows, round, world_size, batch_size);
  }
}

const std::vector<int64_t>& BatchSampler::order(int64_t epoch) const {
  const bool is_random = options_.strategy != "sequential";
  const int64_t key = is_random ? epoch : 0;
  if (key != cached_epoch_) {
    if (is_random) {
      cached_order_ =
          TorchGenerator(options_.seed + static_cast<uint64_t>(epoch)).randperm(num_rows_);
      if (options_.strategy == "group_by_length") group_by_length(cached_order_, options_.groups);
    } else {
      cached_order_.resize(static_cast<size_t>(num_rows_));
      std::iota(cached_order_.begin(), cached_order_.end(), int64_t{0});
    }
    cached_epoch_ = key;
  }
  return cached_order_;
}

std::vector<int64_t> BatchSampler::batch(int64_t epoch, int rank, int64_t index) const {
  if (epoch < 0 || rank < 0 || rank >= options_.world_size || index < 0 ||
      index >= batches_per_rank_) {
    throw InternalError(
        "batch sampler: found epoch {}, rank {}, index {}, expected {} ranks of {} batches", epoch,
        rank, index, options_.world_size, batches_per_rank_);
  }
  const std::vector<int64_t>& rows = order(epoch);
  // Past the end the reference walks through the rows of the first round, again and again.
  const int64_t first_round = std::min(num_rows_, options_.batch_size * options_.world_size);
  const int64_t begin = (index * options_.world_size + rank) * options_.batch_size;
  // accelerate fills batches only where it deals them to several ranks.
  const int64_t size = options_.world_size > 1 ? options_.batch_size
                                               : std::min(options_.batch_size, num_rows_ - begin);
  std::vector<int64_t> batch(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const int64_t at = begin + i;
    batch[i] = rows[at < num_rows_ ? at : (at - num_rows_) % first_round];
  }
  return batch;
}

EvalSampler::EvalSampler(int64_t num_rows, int64_t batch_size, int world_size, bool drop_last,
                         const EvalGroups& groups)
    : num_rows_(num_rows),
      batch_size_(batch_size),
      world_size_(world_size),
      sampler_(num_rows, {.batch_size = batch_size,
                          .world_size = world_size,
                          .seed = groups.seed,
                          .strategy = groups.lengths.empty() ? "sequential" : "group_by_length",
                          .drop_last = drop_last,
                          .groups = {.lengths = groups.lengths, .rows = batch_size}}) {}

EvalBatch EvalSampler::batch(int rank, int64_t index) const {
  const int64_t begin = (index * world_size_ + rank) * batch_size_;
  return {.rows = sampler_.batch(/*epoch=*/0, rank, index),
          .num_real = std::clamp<int64_t>(num_rows_ - begin, 0, batch_size_)};
}

}  // namespace strata::data
