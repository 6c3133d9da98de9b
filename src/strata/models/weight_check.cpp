#include "strata/models/weight_check.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_weight.h"
#include "strata/hf/mxfp4.h"

namespace strata::models {
namespace {

constexpr size_t kListed = 5;

std::string list_names(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kListed);
  std::string text;
  for (size_t i = 0; i < shown; ++i) text += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", names[i]);
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// The file's codes must be those that quantization_config in config.json announces.
void check_codes(const hf::ModelFolder& folder, const hf::QuantizedWeight& stored,
                 const nn::Parameter& parameter) {
  if (!parameter.quantization()) {
    throw FormatError(
        "{}: found \"{}\" quantised ({}), expected a plain weight; use the config.json that "
        "belongs to these weights, and train adapters only",
        folder.path().string(), stored.codes->name, stored.kind);
  }
  const ops::quant::Format& format = parameter.quantization()->format;
  if (stored.kind == ops::quant::name_of(format.kind) &&
      (stored.kind == "int8" ||
       (stored.blocksize == format.block && (stored.nested != nullptr) == format.nested))) {
    return;
  }
  throw FormatError(
      "{}: found \"{}\" as {}, blocks of {}{}, expected {} by config.json; put what they are into "
      "its quantization_config (bnb_4bit_quant_type, bnb_4bit_blocksize, which is 64 where it is "
      "missing, bnb_4bit_use_double_quant)",
      folder.path().string(), stored.codes->name, stored.kind, stored.blocksize,
      stored.nested != nullptr ? ", double" : "", ops::quant::describe(format));
}

// `shape`: of the weight that the tensor holds.
void require_shape(const hf::ModelFolder& folder, const hf::TensorInfo& info,
                   const std::vector<int64_t>& shape, const nn::Parameter& parameter) {
  if (shape == parameter.shape_in_base()) return;
  throw FormatError(
      "{}: tensor \"{}\" has shape [{}], config.json implies [{}]; use the config.json "
      "that belongs to these weights",
      folder.file_of(info).path().string(), info.name, fmt::join(shape, ", "),
      fmt::join(parameter.shape_in_base(), ", "));
}

void check_shape(const hf::ModelFolder& folder, const hf::TensorInfo& info,
                 const nn::Parameter& parameter) {
  const auto& quantization = parameter.quantization();
  if (quantization && quantization->format == ops::quant::kMxfp4Format) {
    throw FormatError(
        "{}: tensor \"{}\": found plain values, expected blocks as quantization_config says "
        "(mxfp4); pass --mxfp4_dequantize true",
        folder.file_of(info).path().filename().string(), info.name);
  }
  if (quantization && quantization->format.kind == ops::quant::Kind::kFp8 &&
      !hf::find_fp8_weight(folder, info.name)) {
    throw FormatError(
        "{}: tensor \"{}\": found plain values, expected fp8; give all ranks one checkpoint",
        folder.file_of(info).path().filename().string(), info.name);
  }
  if (quantization && quantization->format.kind == ops::quant::Kind::kInts) {
    throw FormatError(
        "{}: tensor \"{}\": found plain values, expected whole numbers; give all ranks one "
        "checkpoint",
        folder.file_of(info).path().filename().string(), info.name);
  }
  std::vector<int64_t> shape = info.shape;
  if (const auto stored = hf::find_quantized_weight(folder, info.name)) {
    check_codes(folder, *stored, parameter);
    shape = stored->shape;
  }
  require_shape(folder, info, shape, parameter);
}

bool ends_with_any(const std::string& name, const std::vector<std::string>& suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [&](const std::string& suffix) { return name.ends_with(suffix); });
}

void check_unexpected(const hf::ModelFolder& folder, const std::set<std::string>& known,
                      const std::vector<std::string>& ignored_suffixes,
                      const std::vector<std::string>& ignored_prefixes) {
  std::vector<std::string> unexpected;
  const bool rounds_activations =
      hf::announces_fp8(folder.config()) || hf::announces_ints(folder.config());
  for (const std::string& name : folder.names()) {
    const bool is_ignored = ends_with_any(name, ignored_suffixes) ||
                            (rounds_activations && hf::is_fp8_activation_scale(name)) ||
                            std::ranges::any_of(ignored_prefixes, [&](const std::string& prefix) {
                              return name.starts_with(prefix);
                            });
    if (known.contains(name) || is_ignored || hf::is_void_bias(folder, name)) continue;
    unexpected.push_back(name);
  }
  if (unexpected.empty()) return;
  throw FormatError(
      "{}: found tensors that config.json does not imply: {}, expected only weights of "
      "the model; use the config.json that belongs to these weights",
      folder.path().string(), list_names(unexpected));
}

// The weight NAME where it lies under other names.
bool takes_parts(const hf::ModelFolder& folder, const std::string& name,
                 const nn::Parameter& parameter, std::set<std::string>& known) {
  if (const auto ints = hf::find_int_weight(folder, name)) {
    if (parameter.is_transposed()) {
      throw ConfigError(
          "{}: found \"{}\" for a weight that files hold as [in, out] (GPT-2's Conv1D), expected "
          "plain weights; use a checkpoint of 16 bits",
          folder.path().string(), ints->codes->name);
    }
    require_shape(folder, *ints->codes, ints->dims(), parameter);
    for (const hf::TensorInfo* part : ints->parts()) known.insert(part->name);
    return true;
  }
  if (!hf::announces_mxfp4(folder.config())) return false;
  const auto packed = hf::find_mxfp4_weight(folder, name);
  if (!packed) return false;
  require_shape(folder, *packed->blocks, packed->shape, parameter);
  known.insert({packed->blocks->name, packed->scales->name});
  return true;
}

// Integers that config.json says nothing of.
void require_announced(const hf::ModelFolder& folder, const std::string& missing) {
  constexpr std::string_view kWeight = ".weight";
  if (!missing.ends_with(kWeight) || hf::announces_ints(folder.config())) return;
  const std::string module = missing.substr(0, missing.size() - kWeight.size());
  for (const char* end : {".qweight", ".weight_packed"}) {
    if (folder.find(module + end) == nullptr) continue;
    throw FormatError(
        "{}: found \"{}{}\" in place of \"{}\", expected a quantization_config in config.json "
        "that says how its integers lie there (quant_method gptq, awq or compressed-tensors); use "
        "the config.json that belongs to these weights",
        folder.path().string(), module, end, missing);
  }
}

}  // namespace

WeightSources match_weights(const hf::ModelFolder& folder,
                            const std::vector<ExpectedWeight>& expected,
                            const std::vector<std::string>& ignored_suffixes,
                            const std::vector<std::string>& ignored_prefixes) {
  WeightSources sources;
  std::set<std::string> known;
  std::vector<std::string> missing;
  for (const ExpectedWeight& weight : expected) {
    const hf::TensorInfo* source = nullptr;
    for (const std::string& name : weight.names) {
      known.insert(name);
      const hf::TensorInfo* info = folder.find(name);
      if (info == nullptr && takes_parts(folder, name, *weight.parameter, known)) {
        sources[weight.parameter->name()] = name;
      }
      if (info == nullptr) continue;
      check_shape(folder, *info, *weight.parameter);
      for (std::string& companion : hf::quantized_companions(folder, name)) {
        known.insert(std::move(companion));
      }
      if (const auto fp8 = hf::find_fp8_weight(folder, name)) known.insert(fp8->scales->name);
      if (source == nullptr) source = info;
    }
    if (source != nullptr) {
      sources[weight.parameter->name()] = source->name;
    } else if (!sources.contains(weight.parameter->name())) {
      missing.push_back(weight.names.front());
    }
  }
  if (!missing.empty()) {
    require_announced(folder, missing.front());
    throw FormatError(
        "{}: found no tensor {}, expected every weight that config.json implies; "
        "use a complete checkpoint and the config.json that belongs to it",
        folder.path().string(), list_names(missing));
  }
  check_unexpected(folder, known, ignored_suffixes, ignored_prefixes);
  return sources;
}

const hf::TensorInfo* find_weight(const hf::ModelFolder& folder, const std::string& name) {
  if (const hf::TensorInfo* info = folder.find(name)) return info;
  const auto ints = hf::find_int_weight(folder, name);
  return ints ? ints->codes : nullptr;
}

bool same_values(const hf::ModelFolder& folder, const hf::TensorInfo& a, const hf::TensorInfo& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  const auto in_fp8 = hf::find_readable_fp8(folder, a.name);
  const auto other = in_fp8 ? hf::find_readable_fp8(folder, b.name) : std::nullopt;
  if (in_fp8 && (!other || !same_values(folder, *in_fp8->scales, *other->scales))) return false;
  const auto left = folder.bytes(a), right = folder.bytes(b);
  return std::memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace strata::models
