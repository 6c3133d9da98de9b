#include "strata/checkpoint/gguf/rotary_keys.h"

#include <cmath>
#include <numbers>

#include "strata/base/error.h"

namespace strata::checkpoint {
namespace {

using nn::RopeKind;
using nn::RopeOptions;

void put(GgufFamily& family, const std::string& key, hf::GgufValue value) {
  family.keys.emplace_back(family.architecture + ".rope." + key, std::move(value));
}

[[noreturn]] void refuse(const GgufFamily& family, const std::string& found) {
  throw ConfigError(
      "config.json: found {}, expected rotary positions that llama.cpp has for {}; "
      "use a model without them",
      found, family.architecture);
}

// By how much each frequency is divided. Source: transformers' _compute_llama3_parameters.
std::vector<float> llama3_factors(const RopeOptions& rope) {
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const double longest = original / rope.low_freq_factor,
               shortest = original / rope.high_freq_factor;
  std::vector<float> factors;
  for (int64_t channel = 0; channel < rope.head_dim; channel += 2) {
    const double power = static_cast<double>(channel) / static_cast<double>(rope.head_dim);
    const double length = 2 * std::numbers::pi * std::pow(rope.theta, power);
    double factor = rope.factor;
    if (length < shortest) {
      factor = 1;
    } else if (length <= longest) {
      const double smooth = (original / length - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
      factor = 1 / ((1 - smooth) / rope.factor + smooth);
    }
    factors.push_back(static_cast<float>(factor));
  }
  return factors;
}

void describe_yarn(const RopeOptions& rope, GgufFamily& family) {
  if (!rope.truncate) refuse(family, "rope_type \"yarn\" with truncate = false");
  put(family, "scaling.type", std::string("yarn"));
  put(family, "scaling.factor", static_cast<float>(rope.factor));
  put(family, "scaling.original_context_length",
      static_cast<uint32_t>(rope.original_max_position_embeddings));
  put(family, "scaling.yarn_beta_fast", static_cast<float>(rope.beta_fast));
  put(family, "scaling.yarn_beta_slow", static_cast<float>(rope.beta_slow));
  // llama.cpp takes this factor by itself.
  const double own = rope.factor <= 1 ? 1 : 0.1 * std::log(rope.factor) + 1;
  if (std::abs(rope.attention_factor / own - 1) > 1e-6) {
    put(family, "scaling.attn_factor", static_cast<float>(rope.attention_factor / own));
  }
}

std::vector<float> floats(const std::vector<double>& numbers) {
  return {numbers.begin(), numbers.end()};
}

void describe_longrope(const RopeOptions& rope, GgufFamily& family) {
  if (family.architecture != "phi3") refuse(family, "rope_type \"longrope\"");
  put(family, "scaling.type", std::string("longrope"));
  put(family, "scaling.original_context_length",
      static_cast<uint32_t>(rope.original_max_position_embeddings));
  put(family, "scaling.attn_factor", static_cast<float>(rope.attention_factor));
  family.notes.push_back(
      fmt::format("llama.cpp takes long_factor wherever its context (-c) has more than {} tokens, "
                  "the model for "
                  "texts of more alone: give texts that are shorter a context of no more",
                  rope.original_max_position_embeddings));
  family.extra_tensors.emplace_back("rope_factors_long.weight", floats(rope.long_factors));
  family.extra_tensors.emplace_back("rope_factors_short.weight", floats(rope.short_factors));
}

}  // namespace

void describe_rotation(const RopeOptions& rope, GgufFamily& family) {
  put(family, "dimension_count", static_cast<uint32_t>(rope.head_dim));
  put(family, "freq_base", static_cast<float>(rope.theta));
  switch (rope.kind) {
    case RopeKind::kDefault:
      return;
    case RopeKind::kDynamic:
      family.notes.push_back(
          fmt::format("rope_type \"dynamic\" is left out: texts beyond {} tokens turn as shorter "
                      "ones do",
                      rope.max_position_embeddings));
      return;
    case RopeKind::kLinear:
      put(family, "scaling.type", std::string("linear"));
      put(family, "scaling.factor", static_cast<float>(rope.factor));
      return;
    case RopeKind::kLlama3:
      if (family.architecture != "llama") refuse(family, "rope_type \"llama3\"");
      family.extra_tensors.emplace_back("rope_freqs.weight", llama3_factors(rope));
      return;
    case RopeKind::kYarn:
      return describe_yarn(rope, family);
    case RopeKind::kLongrope:
      return describe_longrope(rope, family);
    case RopeKind::kProportional:
      refuse(family, "rope_type \"proportional\"");
  }
}

}  // namespace strata::checkpoint
