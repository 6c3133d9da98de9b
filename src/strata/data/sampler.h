// Which rows make up which batch on which rank: the order of transformers' Trainer with
// accelerate's seedable sampler and even batches. Pure functions of (seed, epoch, rank, index): a
// resumed run needs no saved state (invariant I7).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strata::data {

// Rows of about the same length follow each other, the longest of all is the first
// (transformers' LengthGroupedSampler).
struct LengthGroups {
  std::vector<int64_t> lengths;  // tokens of every row
  int64_t rows = 1;              // that should be alike: a rank's in one update
};

struct SamplerOptions {
  int64_t batch_size;  // rows of a rank at once
  int world_size = 1;
  uint64_t seed = 0;                // data_seed, else seed
  std::string strategy = "random";  // sequential, group_by_length (train_sampling_strategy)
  bool drop_last = false;           // leave out the last round instead of filling it
  // Of group_by_length. Its permutation is that of random; Trainer's is of the state that its
  // global generator happens to have.
  LengthGroups groups = {};
};

// The training order. Epoch e is torch.randperm seeded with seed + e (or 0, 1, 2, ...), cut into
// batches; batch k goes to rank k mod world_size. The last round is filled with rows of the epoch's
// first world_size batches, so that all ranks get equally many full batches; on a single rank it is
// not filled, its last batch may be short.
// Threads: one thread at a time per object (batch() keeps the last epoch's order).
class BatchSampler {
 public:
  // Errors: ConfigError for sizes below 1, an unknown strategy, or when drop_last leaves nothing.
  BatchSampler(int64_t num_rows, SamplerOptions options);

  // Batches each rank gets in one epoch.
  int64_t batches_per_rank() const { return batches_per_rank_; }
  // Row indices of a batch: batch_size many, on a single rank fewer in the last batch.
  // Requires: 0 <= epoch, 0 <= rank < world_size, 0 <= index < batches_per_rank().
  std::vector<int64_t> batch(int64_t epoch, int rank, int64_t index) const;

 private:
  const std::vector<int64_t>& order(int64_t epoch) const;
  int64_t num_rows_;
  SamplerOptions options_;
  int64_t batches_per_rank_;
  mutable int64_t cached_epoch_ = -1;
  mutable std::vector<int64_t> cached_order_;
};

// The rows beyond num_real only fill the batch: they count in the batch's loss, as they do in the
// reference, but not in the mean over examples.
struct EvalBatch {
  std::vector<int64_t> rows;
  int64_t num_real = 0;
};

// Rows of about the same length in one batch of an evaluation, as Trainer has them with
// train_sampling_strategy group_by_length: drawn by one seed every time.
struct EvalGroups {
  std::vector<int64_t> lengths;  // tokens of every row; empty: the rows' own order
  uint64_t seed = 0;             // data_seed, else seed
};

// The evaluation order: sequential or in groups, dealt to ranks and filled up as above.
class EvalSampler {
 public:
  EvalSampler(int64_t num_rows, int64_t batch_size, int world_size, bool drop_last = false,
              const EvalGroups& groups = {});

  int64_t batches_per_rank() const { return sampler_.batches_per_rank(); }
  // Requires: as BatchSampler::batch.
  EvalBatch batch(int rank, int64_t index) const;

 private:
  int64_t num_rows_;
  int64_t batch_size_;
  int world_size_;
  BatchSampler sampler_;
};

}  // namespace strata::data
