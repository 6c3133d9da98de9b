// From the ids of a text to the ids that continue it, one after the other. Owns: the cache of keys
// and values, when to stop. Never: text, templates or the choice among logits (sampler.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "strata/generate/loaded_model.h"
#include "strata/generate/sampler.h"

namespace strata::generate {

enum class StopReason {
  kEndOfText,      // the last id is one of eos_ids
  kMaxNewTokens,   // as many as were asked for
  kContextLimit,   // the text fills max_position_embeddings
  kStoppedByUser,  // the callback said so
};

struct Continuation {
  std::vector<int32_t> ids;  // an end-of-text id included
  StopReason reason = StopReason::kMaxNewTokens;
};

struct GenerateOptions {
  int64_t max_new_tokens = 256;
  std::vector<int32_t> eos_ids = {};
  // false: compute the whole text for every token (slow; an oracle for the cache).
  bool use_cache = true;
  // Asked between the parts of a long prompt; true stops before there is an answer.
  std::function<bool()> is_asked_to_stop = {};
};

// Called with every new id; false stops. An end-of-text id is not passed on.
using OnToken = std::function<bool(int32_t id)>;

// Keeps keys and values of its last text: a next text with the same beginning, as in a
// conversation, computes only what is new. Threads: one at a time.
class Generator {
 public:
  // `model` must outlive the generator.
  explicit Generator(LoadedModel& model) : model_(model) {}

  // Errors: ConfigError for an empty prompt, one that fills the context, and ids beyond the
  // vocabulary; those of Sampler::next().
  Continuation generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                        Sampler& sampler, const OnToken& on_token = {});

 private:
  void check_prompt(std::span<const int32_t> prompt) const;
  // A cache for `capacity` tokens that keeps what is common with the last text.
  void prepare_cache(std::span<const int32_t> prompt, int64_t capacity);
  // Forgets keys that a text of this length has not (longrope), and notes the length.
  void follow_length(int64_t length);
  // Logits after text[0, size). Computes what the cache lacks. Undefined: it was asked to stop.
  at::Tensor logits_after(std::span<const int32_t> text, const GenerateOptions& options);

  LoadedModel& model_;
  std::unique_ptr<nn::KvCache> cache_;
  std::vector<int32_t> cached_;  // ids whose keys and values the cache holds
  int revision_ = 0;             // of the model that computed them
};

}  // namespace strata::generate
