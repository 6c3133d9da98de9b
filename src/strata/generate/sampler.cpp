#include "strata/generate/sampler.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "strata/base/error.h"

namespace strata::generate {
namespace {

constexpr double kRemoved = -std::numeric_limits<double>::infinity();

// Tokens of the text: positive scores are divided, negative ones multiplied.
at::Tensor penalize_repetition(const at::Tensor& scores, std::span<const int32_t> ids,
                               double penalty) {
  at::Tensor index = at::empty({static_cast<int64_t>(ids.size())}, at::kLong);
  std::copy(ids.begin(), ids.end(), index.data_ptr<int64_t>());
  const at::Tensor seen = scores.gather(0, index);
  return scores.scatter(0, index, at::where(seen < 0, seen * penalty, seen / penalty));
}

at::Tensor keep_top_k(const at::Tensor& scores, int64_t k) {
  k = std::min(k, scores.numel());
  const at::Tensor smallest_kept = std::get<0>(scores.topk(k))[k - 1];
  return scores.masked_fill(scores < smallest_kept, kRemoved);
}

at::Tensor keep_top_p(const at::Tensor& scores, double p) {
  const auto [sorted, order] = scores.sort(/*dim=*/0, /*descending=*/false);
  at::Tensor removed = sorted.softmax(0).cumsum(0) <= 1 - p;
  removed.narrow(0, removed.numel() - 1, 1).fill_(false);
  return scores.masked_fill(removed.scatter(0, order, removed), kRemoved);
}

at::Tensor keep_min_p(const at::Tensor& scores, double min_p) {
  const at::Tensor probabilities = scores.softmax(0);
  at::Tensor removed = probabilities < min_p * probabilities.max();
  removed.scatter_(0, scores.argmax(0, /*keepdim=*/true), false);
  return scores.masked_fill(removed, kRemoved);
}

void require(bool holds, const char* name, double value, const char* expected) {
  if (holds) return;
  throw ConfigError("{}: found {}, expected {}", name, value, expected);
}

}  // namespace

void check_sampling_options(const SamplingOptions& o) {
  require(std::isfinite(o.temperature) && o.temperature > 0, "temperature", o.temperature,
          "a number above 0; for the most likely answer turn do_sample off");
  require(o.top_k >= 0, "top_k", static_cast<double>(o.top_k), "an integer of at least 0");
  require(o.top_p >= 0 && o.top_p <= 1, "top_p", o.top_p, "a number in [0, 1]");
  require(o.min_p >= 0 && o.min_p <= 1, "min_p", o.min_p, "a number in [0, 1]");
  require(std::isfinite(o.repetition_penalty) && o.repetition_penalty > 0, "repetition_penalty",
          o.repetition_penalty, "a number above 0");
}

at::Tensor filter_logits(const at::Tensor& logits, std::span<const int32_t> ids,
                         const SamplingOptions& options) {
  at::Tensor scores = logits;
  if (options.repetition_penalty != 1.0 && !ids.empty()) {
    scores = penalize_repetition(scores, ids, options.repetition_penalty);
  }
  if (!options.do_sample) return scores;
  if (options.temperature != 1.0) scores = scores / options.temperature;
  if (options.top_k != 0) scores = keep_top_k(scores, options.top_k);
  if (options.top_p < 1.0) scores = keep_top_p(scores, options.top_p);
  if (options.min_p > 0.0) scores = keep_min_p(scores, options.min_p);
  return scores;
}

Sampler::Sampler(const SamplingOptions& options, uint64_t seed)
    : options_(options), seed_(seed), generator_(at::detail::createCPUGenerator(seed)) {
  check_sampling_options(options);
}

int32_t Sampler::next(const at::Tensor& logits, std::span<const int32_t> ids) {
  // max() passes NaN on, so one comparison finds both faults.
  if (!std::isfinite(logits.max().item<float>())) {
    throw FormatError(
        "logits: found NaN or no finite value, expected a number for each token; the model's "
        "weights are damaged or it diverged in training");
  }
  const at::Tensor scores = filter_logits(logits, ids, options_);
  if (!options_.do_sample) return static_cast<int32_t>(scores.argmax(0).item<int64_t>());
  const at::Tensor drawn = at::multinomial(scores.softmax(0), 1, /*replacement=*/false, generator_);
  return static_cast<int32_t>(drawn.item<int64_t>());
}

void Sampler::reset() { generator_ = at::detail::createCPUGenerator(seed_); }

}  // namespace strata::generate
