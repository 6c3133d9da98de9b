// DeepSpeed's batch identity: train_batch_size = micro batch x accumulation x ranks. Never: where
// the numbers come from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace strata::config {

// Rows: of an update, of a micro-batch on one rank; micro-batches of an update.
struct BatchSizes {
  std::optional<int64_t> train, micro, accumulation;
};

// `groups` of `sharers` ranks each that have the same rows.
struct RankGroups {
  int64_t groups = 1;
  int64_t sharers = 1;
};

// Fills what is missing by DeepSpeed's rules (runtime/config.py, 0.19.8): train and micro give the
// accumulation, train and accumulation the micro batch, train alone accumulation 1, micro alone
// accumulation 1.
// Throws ConfigError "SUBJECT: ..." with the arithmetic where the identity does not hold, a size
// would be 0, or neither train nor micro is there. Requires: at least one of each.
BatchSizes solve_batch(BatchSizes given, const RankGroups& ranks, const std::string& subject);

}  // namespace strata::config
