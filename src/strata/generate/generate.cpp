#include "strata/generate/generate.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/base/error.h"

namespace strata::generate {
namespace {

// Tokens of a long prompt that go through the layers at once: bounds the memory of activations.
constexpr size_t kPromptChunk = 512;

std::unique_ptr<nn::KvCache> copy_of(const nn::KvCache& cache, int64_t length, int64_t capacity) {
  auto copy = std::make_unique<nn::KvCache>(static_cast<int64_t>(cache.layers.size()), capacity);
  const auto grown = [&](const at::Tensor& from) {
    if (!from.defined()) return from;  // of a layer that reads another's
    at::Tensor to = at::empty({capacity, from.size(1), from.size(2)}, from.options());
    to.narrow(0, 0, length).copy_(from.narrow(0, 0, length));
    return to;
  };
  copy->text_length = cache.text_length;
  copy->length_of_change = cache.length_of_change;
  copy->changes_with_length = cache.changes_with_length;
  for (size_t i = 0; i < cache.layers.size(); ++i) {
    copy->layers[i].keys = grown(cache.layers[i].keys);
    copy->layers[i].values = grown(cache.layers[i].values);
    copy->layers[i].state = cache.layers[i].state;
    copy->layers[i].last_inputs = cache.layers[i].last_inputs;
  }
  return copy;
}

// Whether a text of this length reads what the cache has of its beginning, the `is_whole` last
// text.
bool goes_on(const nn::KvCache& cache, int64_t length, bool is_whole) {
  // A state stands for the whole last text, which may go on, and for no part of it.
  if (cache.has_states() && !is_whole) return false;
  return !cache.changes_with_length ||
         std::max(cache.text_length, length) <= cache.length_of_change;
}

}  // namespace

void Generator::check_prompt(std::span<const int32_t> prompt) const {
  if (prompt.empty()) throw ConfigError("prompt: found no tokens, expected at least one");
  const int64_t limit = model_.max_text_tokens();
  if (static_cast<int64_t>(prompt.size()) >= limit) {
    throw ConfigError(
        "prompt: found {} tokens, expected fewer than {} {}; shorten it or start a new "
        "conversation",
        prompt.size(), limit, model_.text_limit_note());
  }
  for (int32_t id : prompt) {
    if (id >= 0 && id < model_.vocab_size()) continue;
    throw ConfigError(
        "prompt: found token id {}, expected ids below {} (the model's vocab_size); tokenizer and "
        "model do not belong together",
        id, model_.vocab_size());
  }
}

void Generator::prepare_cache(std::span<const int32_t> prompt, int64_t capacity) {
  if (revision_ != model_.revision()) cached_.clear();
  revision_ = model_.revision();
  // The last token is computed again: its logits were not kept.
  const auto last = prompt.end() - 1;
  const auto common =
      std::mismatch(prompt.begin(), last, cached_.begin(), cached_.end()).first - prompt.begin();
  const int64_t in_front = model_.num_virtual_tokens();
  const bool starts_again =
      cache_ != nullptr && !goes_on(*cache_, std::ssize(prompt) + in_front,
                                    /*is_whole=*/common == std::ssize(cached_));
  const int64_t length = starts_again ? 0 : common;
  if (length == 0) {
    cache_ = std::make_unique<nn::KvCache>(model_.num_layers(), in_front + capacity);
  } else if (cache_->capacity < in_front + capacity) {
    cache_ = copy_of(*cache_, in_front + length, in_front + capacity);
  }
  cache_->length = length == 0 ? 0 : in_front + length;
  cached_.resize(static_cast<size_t>(length));
}

void Generator::follow_length(int64_t length) {
  const int64_t change = cache_->length_of_change;
  if (!cache_->changes_with_length && (cache_->text_length > change) != (length > change)) {
    cached_.clear();
    cache_->length = 0;
    cache_->forget_states();
  }
  cache_->text_length = length;
}

at::Tensor Generator::logits_after(std::span<const int32_t> text, const GenerateOptions& options) {
  if (!options.use_cache) return model_.next_logits(text, nullptr);
  follow_length(static_cast<int64_t>(text.size()) + model_.num_virtual_tokens());
  at::Tensor logits;
  while (cached_.size() < text.size()) {
    if (logits.defined() && options.is_asked_to_stop && options.is_asked_to_stop()) return {};
    const size_t count = std::min(kPromptChunk, text.size() - cached_.size());
    const std::span<const int32_t> chunk = text.subspan(cached_.size(), count);
    try {
      logits = model_.next_logits(chunk, cache_.get());
    } catch (...) {
      cached_.clear();  // some layers may have gone on, others not
      throw;
    }
    cached_.insert(cached_.end(), chunk.begin(), chunk.end());
  }
  return logits;
}

Continuation Generator::generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                                 Sampler& sampler, const OnToken& on_token) {
  check_prompt(prompt);
  const auto start = static_cast<int64_t>(prompt.size());
  const int64_t room = model_.max_text_tokens() - start;
  const int64_t most = std::min(options.max_new_tokens, room);
  if (options.use_cache) prepare_cache(prompt, start + most);
  std::vector<int32_t> text(prompt.begin(), prompt.end());
  Continuation result;
  result.reason =
      room < options.max_new_tokens ? StopReason::kContextLimit : StopReason::kMaxNewTokens;
  for (int64_t i = 0; i < most; ++i) {
    const at::Tensor logits = logits_after(text, options);
    if (!logits.defined()) {
      result.reason = StopReason::kStoppedByUser;
      break;
    }
    const int32_t id = sampler.next(logits, text);
    text.push_back(id);
    result.ids.push_back(id);
    if (std::ranges::find(options.eos_ids, id) != options.eos_ids.end()) {
      result.reason = StopReason::kEndOfText;
      break;
    }
    if (on_token && !on_token(id)) {
      result.reason = StopReason::kStoppedByUser;
      break;
    }
  }
  return result;
}

}  // namespace strata::generate
