#include "strata/checkpoint/base_mark.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/checkpoint/manifest.h"
#include "strata/hf/base_fingerprint.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/hf/fp8.h"
#include "strata/shard/fp8_loading.h"
#include "strata/shard/loading.h"

namespace strata::checkpoint {
namespace {

constexpr std::string_view kWeights = " of the weights ", kRounded = "in ", kAsStored = "as stored";
constexpr std::string_view kStored = "stored ", kWithout = ", without ";
constexpr std::string_view kNoLayer = "exception";
constexpr size_t kNamedLayers = 8;

// What codes were made from: where rounding changes nothing, the values as they lie in the file.
std::string origin(const hf::ModelFolder& folder, const CodesOnTheWay& quantized) {
  std::vector<float> sampled = hf::sampled_values(folder);
  at::Tensor values =
      at::from_blob(sampled.data(), {static_cast<int64_t>(sampled.size())}, at::kFloat);
  at::Tensor rounded = values.to(quantized.type).to(at::kFloat);
  // Weights in fp8 are those of their copy.
  const bool in_fp8 = hf::announces_fp8(folder.config());
  if (in_fp8) {
    values = values.to(shard::scalar_type_of(shard::decoded_type(folder), "")).to(at::kFloat);
  }
  if (quantized.quantization.quantization.format.kind ==
      ops::quant::Kind::kInt8) {  // is made from fp16, whatever it was
    values = values.to(at::kHalf);
    rounded = rounded.to(at::kHalf);
  }
  const std::string_view name = quantized.type == at::kFloat      ? "float32"
                                : quantized.type == at::kBFloat16 ? "bfloat16"
                                                                  : "float16";
  const bool may_differ = quantized.type != at::kFloat || in_fp8;
  const bool is_rounded = may_differ && !values.equal(rounded);
  return is_rounded ? fmt::format("{}{}", kRounded, name) : std::string(kAsStored);
}

// ", without q_proj, up_proj": the layers that are no codes, where they are not the default's.
std::string describe_plain(const hf::ModelFolder& folder, const models::SkipModules& skip_modules) {
  const auto layers = models::plain_layers(folder, skip_modules);
  if (!layers) return "";
  if (layers->empty()) return fmt::format("{}{}", kWithout, kNoLayer);
  const std::string names = fmt::format("{}", fmt::join(*layers, ", "));
  if (layers->size() <= kNamedLayers) return std::string(kWithout) + names;
  return fmt::format("{}{} layers ({})", kWithout, layers->size(),
                     checksum(names.data(), names.size()));
}

// "nf4 of the weights as stored, blocks of 64".
std::string describe_codes(const hf::ModelFolder& folder, const CodesOnTheWay& quantized) {
  const models::QuantizationOptions& options = quantized.quantization;
  std::string text = ops::quant::describe(options.quantization.format);
  text.insert(text.find(','), std::string(kWeights) + origin(folder, quantized));
  return text + describe_plain(folder, options.skip_modules);
}

// How codes lie in a folder.
std::string describe_stored(const hf::ModelFolder& folder) {
  std::string format = "codes";
  try {
    const auto stored = models::stored_quantization(folder.config());
    if (stored) {
      format = ops::quant::describe(stored->quantization.format);
      format += describe_plain(folder, stored->skip_modules);
    }
  } catch (const Error&) {  // of another program: may be looked at all the same
  }
  return std::string(kStored) + format;
}

// Codes in a mark, in parts. `origin`: empty in marks of codes whose origin nobody wrote down.
struct Codes {
  std::string format;  // "nf4, blocks of 64"
  std::string origin;  // "in bfloat16" or "as stored"
  std::string plain;   // "q_proj, up_proj"; empty: the default's layers
};

Codes parse_codes(std::string text) {
  Codes codes;
  if (const size_t at = text.find(kWithout); at != std::string::npos) {
    codes.plain = text.substr(at + kWithout.size());
    text.erase(at);
  }
  const size_t begin = text.find(kWeights);
  if (text.starts_with(kStored)) {
    codes.format = text.substr(kStored.size());
  } else if (begin == std::string::npos) {
    codes.format = text;
  } else {
    const size_t end = std::min(text.find(',', begin), text.size());
    const size_t word = begin + kWeights.size();
    codes.format = text.substr(0, begin) + text.substr(end);
    codes.origin = text.substr(word, end - word);
  }
  return codes;
}

std::string type_flag(const Codes& codes) {
  if (codes.origin == kAsStored) return "--dtype float32";
  if (!codes.origin.starts_with(kRounded)) return "the --dtype of its training";
  return "--dtype " + codes.origin.substr(kRounded.size());
}

std::string skip_flag(const Codes& codes, const Codes& found) {
  constexpr std::string_view kFlag = "--llm_int8_skip_modules";
  if (codes.plain.empty()) return found.plain.empty() ? "" : fmt::format(", without {}", kFlag);
  if (codes.plain == kNoLayer || codes.plain.ends_with(')')) {
    return fmt::format(" and the {} of its training", kFlag);
  }
  std::string names = codes.plain;
  std::erase(names, ' ');
  return fmt::format(" {} {}", kFlag, names);
}

[[noreturn]] void refuse_codes(const std::string& adapter, const std::string& wanted,
                               const std::string& base, const std::string& found) {
  const Codes codes = parse_codes(wanted);
  throw ConfigError(
      "{}: found an adapter whose initial values were made from the codes of {} ({}), expected it "
      "over those and not over {}; quantise the base while loading as its training did, or write "
      "it so with strata convert {} OUT --to {} and name OUT, either with {}{}",
      adapter, base, wanted, found.empty() ? "plain weights" : found, base,
      codes.format.starts_with("int8") ? "bnb-8bit" : "bnb-4bit", type_flag(codes),
      skip_flag(codes, parse_codes(found)));
}

std::string unknown_origin(const std::string& adapter, const std::string& base) {
  return fmt::format(
      "{} was made from codes, and nothing says whether those of {} were made from the same "
      "weights, rounded to the same type (--dtype): if not, it gives other values than were "
      "trained",
      adapter, base);
}

std::string made_from_plain(const std::string& adapter, const std::string& base) {
  return fmt::format(
      "{} was made from plain weights: over the codes of {} it gives other values than were "
      "trained",
      adapter, base);
}

// Of one format and the same layers, and one of them without an origin.
bool may_be_same(const std::string& wanted, const std::string& found) {
  const Codes one = parse_codes(wanted), other = parse_codes(found);
  return one.format == other.format && one.plain == other.plain &&
         (one.origin.empty() || other.origin.empty());
}

}  // namespace

std::string base_mark(const hf::ModelFolder& folder,
                      const std::optional<CodesOnTheWay>& quantized) {
  hf::BaseMark mark{.fingerprint = hf::base_fingerprint(folder), .codes = {}};
  if (mark.fingerprint.empty()) return "";
  if (hf::announces_codes(folder.config())) {
    if (const std::string left = hf::fingerprint_in(folder); !left.empty()) return left;
    mark.codes = describe_stored(folder);
  } else if (quantized) {
    mark.codes = describe_codes(folder, *quantized);
  }
  return mark.text();
}

std::string mark_of_weights(const std::string& mark) {
  const hf::BaseMark parsed = hf::parse_base_mark(mark);
  return parsed.is_of_known_weights() ? parsed.fingerprint : "";
}

std::string require_base(const std::string& adapter, const std::string& trained_on,
                         const std::string& base, const std::string& found, bool changes_base) {
  if (trained_on.empty() || found.empty() || trained_on == found) return "";
  const hf::BaseMark wanted = hf::parse_base_mark(trained_on), has = hf::parse_base_mark(found);
  const bool are_known = wanted.is_of_known_weights() && has.is_of_known_weights();
  const bool is_same = wanted.fingerprint == has.fingerprint;
  // Codes of weights that nobody knows may be those of any base.
  if (is_same || (wanted.is_of_known_weights() && !are_known)) {
    // A fingerprint of codes holds which layers are some.
    const bool is_of_codes = is_same && !wanted.is_of_known_weights();
    if (is_of_codes) return "";
    if (wanted.codes.empty()) {
      return changes_base && !has.codes.empty() ? made_from_plain(adapter, base) : "";
    }
    if (may_be_same(wanted.codes, has.codes)) return unknown_origin(adapter, base);
    refuse_codes(adapter, wanted.codes, base, has.codes);
  }
  throw ConfigError(
      "{}: found an adapter that was trained on a base with the fingerprint {}, expected {} as {} "
      "has; name the base that it was trained on, or remove the mark with strata convert ADAPTER "
      "OUT --to safetensors --forget_base",
      adapter, trained_on, found, base);
}

}  // namespace strata::checkpoint
