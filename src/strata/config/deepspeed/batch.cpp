// The identity, solved.
#include "strata/config/deepspeed/batch.h"

#include <fmt/format.h>

#include "strata/base/error.h"

namespace strata::config {
namespace {

std::string shown(const std::optional<int64_t>& value) {
  return value ? std::to_string(*value) : "?";
}

[[noreturn]] void refuse(const BatchSizes& given, const BatchSizes& solved, const RankGroups& ranks,
                         const std::string& subject) {
  const bool shares = ranks.sharers > 1;
  const std::string sharing = shares ? fmt::format(" of which {} share rows", ranks.sharers) : "";
  throw ConfigError(
      "{}: found train_batch_size {}, train_micro_batch_size_per_gpu {}, "
      "gradient_accumulation_steps {} on {} ranks{}, expected train = micro x accumulation x {}, "
      "but {} x {} x {} = {}; correct one of them or write \"auto\"",
      subject, shown(given.train), shown(given.micro), shown(given.accumulation),
      ranks.groups * ranks.sharers, sharing, shares ? "groups of ranks" : "ranks", *solved.micro,
      *solved.accumulation, ranks.groups, *solved.micro * *solved.accumulation * ranks.groups);
}

}  // namespace

BatchSizes solve_batch(BatchSizes given, const RankGroups& ranks, const std::string& subject) {
  BatchSizes solved = given;
  if (!given.train && !given.micro) {
    throw ConfigError(
        "{}: found neither train_batch_size nor train_micro_batch_size_per_gpu, expected one of "
        "them",
        subject);
  }
  if (given.train && !given.micro && !given.accumulation) solved.accumulation = 1;
  if (given.train && !solved.micro)
    solved.micro = *given.train / ranks.groups / *solved.accumulation;
  if (given.train && !solved.accumulation) {
    solved.accumulation = *given.train / *given.micro / ranks.groups;
  }
  if (!solved.accumulation) solved.accumulation = 1;
  if (!solved.train) solved.train = *solved.micro * *solved.accumulation * ranks.groups;
  const bool holds = *solved.train == *solved.micro * *solved.accumulation * ranks.groups;
  if (!holds || *solved.micro < 1 || *solved.accumulation < 1) {
    refuse(given, solved, ranks, subject);
  }
  return solved;
}

}  // namespace strata::config
