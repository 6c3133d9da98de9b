// The identity, solved.
#include "strata/config/deepspeed_batch.h"

#include "strata/base/error.h"

namespace strata::config {
namespace {

std::string shown(const std::optional<int64_t>& value) {
  return value ? std::to_string(*value) : "?";
}

[[noreturn]] void refuse(const BatchSizes& given, const BatchSizes& solved, int64_t world_size,
                         const std::string& subject) {
  const int64_t product = *solved.micro * *solved.accumulation * world_size;
  throw ConfigError(
      "{}: found train_batch_size {}, train_micro_batch_size_per_gpu {}, "
      "gradient_accumulation_steps {} on {} ranks, expected train = micro x accumulation x ranks, "
      "but {} x {} x {} = {}; correct one of them or write \"auto\"",
      subject, shown(given.train), shown(given.micro), shown(given.accumulation), world_size,
      *solved.micro, *solved.accumulation, world_size, product);
}

}  // namespace

BatchSizes solve_batch(BatchSizes given, int64_t world_size, const std::string& subject) {
  BatchSizes solved = given;
  if (!given.train && !given.micro) {
    throw ConfigError(
        "{}: found neither train_batch_size nor train_micro_batch_size_per_gpu, expected one of "
        "them",
        subject);
  }
  if (given.train && !given.micro && !given.accumulation) solved.accumulation = 1;
  if (given.train && !solved.micro) solved.micro = *given.train / world_size / *solved.accumulation;
  if (given.train && !solved.accumulation) {
    solved.accumulation = *given.train / *given.micro / world_size;
  }
  if (!solved.accumulation) solved.accumulation = 1;
  if (!solved.train) solved.train = *solved.micro * *solved.accumulation * world_size;
  const bool holds = *solved.train == *solved.micro * *solved.accumulation * world_size;
  if (!holds || *solved.micro < 1 || *solved.accumulation < 1) {
    refuse(given, solved, world_size, subject);
  }
  return solved;
}

}  // namespace strata::config
