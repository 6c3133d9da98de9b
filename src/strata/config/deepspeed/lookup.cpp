// Finding keys of DeepSpeed, what is near to an unknown one, and whether a value has a key's type.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include <fmt/format.h>

#include "strata/base/text_distance.h"
#include "strata/config/deepspeed/keys.h"

namespace strata::config {
namespace {

using enum DsType;
using enum DsUse;

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }
std::string block_of(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == path.npos ? "" : path.substr(0, dot);
}

// Mistakes that people make, by the path as written.
const std::map<std::string, std::string>& known_mistakes() {
  static const std::map<std::string, std::string> kMistakes = {
      {"aio.thread_count", "DeepSpeed reads intra_op_parallelism"},
      {"activation_checkpointing.partitioned_activations", "DeepSpeed reads partition_activations"},
      {"zero_optimization.grad_hooks", "DeepSpeed has no such key; remove it"},
      {"zero_optimization.offload_optimizer.buffer_size",
       "it belongs to offload_param; offload_optimizer has buffer_count"},
      {"bf16.loss_scale", "bfloat16 needs no loss scale; remove it"},
      {"bf16.initial_scale_power", "bfloat16 needs no loss scale; remove it"},
      {"bf16.loss_scale_window", "bfloat16 needs no loss scale; remove it"},
      {"bf16.hysteresis", "bfloat16 needs no loss scale; remove it"},
      {"bf16.min_loss_scale", "bfloat16 needs no loss scale; remove it"},
      {"optimizer.params.max_grad_norm", "use gradient_clipping at the top"},
      {"zero_optimization.strict", "DeepSpeed swallows it; remove it"},
  };
  return kMistakes;
}

}  // namespace

const DsKey* find_deepspeed_key(const std::string& path) {
  static const std::map<std::string, const DsKey*> index = [] {
    std::map<std::string, const DsKey*> all;
    for (const DsKey& key : deepspeed_keys()) {
      all.emplace(key.path, &key);
      const std::string block = block_of(std::string(key.path));
      for (const std::string_view alias : key.aliases)
        all.emplace(block + "." + std::string(alias), &key);
    }
    return all;
  }();
  const std::string plain = path.starts_with("bfloat16") ? "bf16" + path.substr(8) : path;
  const auto found = index.find(plain);
  return found == index.end() ? nullptr : found->second;
}

bool is_deepspeed_block(const std::string& path) {
  const std::string plain = path == "bfloat16" ? "bf16" : path;
  return std::ranges::any_of(deepspeed_keys(), [&](const DsKey& key) {
    return key.path.starts_with(plain + ".") || (key.path == plain && key.type == kBlock);
  });
}

std::string deepspeed_hint(const std::string& path) {
  if (const auto found = known_mistakes().find(path); found != known_mistakes().end()) {
    return found->second;
  }
  const std::string block = block_of(path), name = last_part(path);
  std::vector<std::string> siblings;
  std::string elsewhere;
  for (const DsKey& key : deepspeed_keys()) {
    const std::string known(key.path);
    if (block_of(known) == block) siblings.push_back(last_part(known));
    // The first part below the block: a block of its own.
    const std::string prefix = block.empty() ? "" : block + ".";
    if (known.starts_with(prefix)) {
      siblings.push_back(
          known.substr(prefix.size(), known.find('.', prefix.size()) - prefix.size()));
    }
    if (elsewhere.empty() && last_part(known) == name) elsewhere = block_of(known);
  }
  if (!elsewhere.empty() && elsewhere != block) return "it belongs into \"" + elsewhere + "\"";
  if (const auto near = closest(name, siblings)) return "did you mean " + *near + "?";
  std::vector<std::string> all;
  std::map<std::string, std::string> paths;
  for (const DsKey& key : deepspeed_keys()) {
    const std::string known(key.path);
    all.push_back(last_part(known));
    paths.emplace(last_part(known), known);
  }
  if (const auto near = closest(name, all)) return "did you mean " + paths.at(*near) + "?";
  return "remove it";
}

// Up to here a JSON number is the integer that stands there.
static constexpr double kMostExact = 9007199254740992;

std::optional<std::string> deepspeed_type_error(const DsKey& key, const Json& value) {
  const auto wrong = [&](std::string expected) {
    if (value.is_string() &&
        (key.type == kInteger || key.type == kNumber || key.type == kBoolean)) {
      expected += " without quotes";
    }
    // DeepSpeed compares it with 0 at the first update, and fails.
    if (value.is_null() && key.path == "gradient_clipping") {
      expected += "; 0 clips never, and without the key it is max_grad_norm";
    }
    return fmt::format("found {}, expected {}", dump_python(value, /*indent=*/-1), expected);
  };
  // DeepSpeed reads a null there as the default.
  if (value.is_null() && (key.use != kSetting || key.path == "sequence_parallel_size")) {
    return std::nullopt;
  }
  switch (key.type) {
    case kBoolean:
      if (!value.is_boolean()) return wrong("true or false");
      return std::nullopt;
    case kInteger:
    case kNumber: {
      const bool whole = key.type == kInteger;
      const double number = value.is_number() ? value.get<double>() : NAN;
      if (whole && number > kMostExact) return wrong(fmt::format("at most {:.0f}", kMostExact));
      // accelerate writes "steps_per_print": Infinity.
      const bool may_be_infinite = key.use == kNoEffect && number > 0;
      const bool fits = number >= key.min && (std::isfinite(number) || may_be_infinite);
      if (fits && (!whole || number == std::floor(number))) return std::nullopt;
      const std::string noun = whole ? "an integer" : "a number";
      return wrong(key.min > -1e300 ? fmt::format("{} of at least {}", noun, key.min) : noun);
    }
    case kText:
      if (!value.is_string()) return wrong("a text");
      return std::nullopt;
    case kList:
      if (!value.is_array()) return wrong("a list");
      return std::nullopt;
    case kBlock:
      if (!value.is_object()) return wrong("a block {...}");
      return std::nullopt;
    case kAny:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace strata::config
