// From logits to the next token, in the reference's order: repetition penalty; when sampling,
// temperature, top_k, top_p, min_p. Owns: the random generator. Never: the model.
// Source: transformers 5, generation/logits_process.py and GenerationMixin._sample.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace strata::generate {

// Defaults are those of transformers' GenerationConfig.
struct SamplingOptions {
  bool do_sample = false;           // false: the most likely token, the first of equals
  double temperature = 1.0;         // > 0; divides the logits
  int64_t top_k = 50;               // keep the k most likely tokens and their equals; 0: all
  double top_p = 1.0;               // keep the fewest tokens whose probabilities reach p; 1: all
  double min_p = 0.0;               // keep tokens with min_p of the largest probability; 0: all
  double repetition_penalty = 1.0;  // > 0; over 1 makes tokens of the text so far less likely
};

// ConfigError naming the option that is out of range.
void check_sampling_options(const SamplingOptions& options);

// The logits after all filters; removed tokens are -inf. `logits`: fp32 [vocab], not changed;
// `ids`: the text so far, prompt included.
at::Tensor filter_logits(const at::Tensor& logits, std::span<const int32_t> ids,
                         const SamplingOptions& options);

// Same seed, logits and texts: same tokens; the draws are torch.multinomial's.
class Sampler {
 public:
  // ConfigError as check_sampling_options().
  Sampler(const SamplingOptions& options, uint64_t seed);

  // FormatError when the logits hold NaN or nothing finite.
  int32_t next(const at::Tensor& logits, std::span<const int32_t> ids);

  // Starts the random numbers anew.
  void reset();

 private:
  SamplingOptions options_;
  uint64_t seed_;
  at::Generator generator_;
};

}  // namespace strata::generate
