// Choice of the layers that are quantised. Never: arithmetic.
#include "strata/models/quantization.h"

#include <algorithm>
#include <regex>
#include <set>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/nn/linear.h"

namespace strata::models {
namespace {

// transformers' should_convert_module: a prefix or regular expression up to a border between
// modules, or a plain ending.
bool is_skipped(const std::string& path, const std::vector<std::string>& skip) {
  return std::any_of(skip.begin(), skip.end(), [&](const std::string& entry) {
    if (path.ends_with(entry) || path == entry || path.starts_with(entry + ".")) return true;
    try {
      return std::regex_search(path, std::regex("^(?:" + entry + ")(?:\\.|$)"));
    } catch (const std::regex_error&) {
      return false;
    }
  });
}

std::string text_of(const Json& json, const char* key, const std::string& missing) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : missing;
}

bool flag_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

}  // namespace

std::optional<QuantizationOptions> stored_quantization(const Json& model_config) {
  const auto entry = model_config.find("quantization_config");
  if (entry == model_config.end() || !entry->is_object()) return {};
  const std::string method = text_of(*entry, "quant_method", "");
  const bool in_4bit = flag_of(*entry, "load_in_4bit") || flag_of(*entry, "_load_in_4bit");
  const bool in_8bit = flag_of(*entry, "load_in_8bit") || flag_of(*entry, "_load_in_8bit");
  if (method != "bitsandbytes" || in_4bit == in_8bit) {
    throw ConfigError(
        "config.json: quantization_config: found quant_method \"{}\", expected bitsandbytes with "
        "load_in_4bit or load_in_8bit; use a checkpoint without quantisation",
        method);
  }
  QuantizationOptions options;
  if (in_8bit) {
    options.quantization.format.kind = ops::quant::Kind::kInt8;
    const auto threshold = entry->find("llm_int8_threshold");
    if (threshold != entry->end() && threshold->is_number()) {
      options.quantization.threshold = threshold->get<double>();
    }
  } else {
    options.quantization.format.kind = ops::quant::parse_kind(
        text_of(*entry, "bnb_4bit_quant_type", "fp4"), "config.json: bnb_4bit_quant_type");
    options.quantization.format.nested = flag_of(*entry, "bnb_4bit_use_double_quant");
    const auto block =
        entry->find("bnb_4bit_blocksize");  // ours; the reference reads each tensor's
    if (block != entry->end() && block->is_number_integer()) {
      options.quantization.format.block = block->get<int64_t>();
      ops::quant::check_block(options.quantization.format.block, "config.json: bnb_4bit_blocksize");
    }
    options.quantization.compute =
        compute_type_of(text_of(*entry, "bnb_4bit_compute_dtype", "float32"));
  }
  const auto skip = entry->find("llm_int8_skip_modules");
  if (skip != entry->end() && skip->is_array()) {
    options.skip_modules = skip->get<std::vector<std::string>>();
  }
  return options;
}

std::optional<at::ScalarType> compute_type_of(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  return {};
}

int quantize_linears(Model& model, const QuantizationOptions& options) {
  // A weight that two modules use is no codes to one of them (embedding and output layer).
  std::multiset<const nn::Parameter*> uses;
  std::vector<nn::Linear*> layers;
  for (Block* block : model.blocks()) {
    for (nn::Parameter* parameter : block->parameters()) uses.insert(parameter);
    for (nn::Linear* layer : block->linears()) layers.push_back(layer);
  }
  const std::vector<std::string> plain = model.never_quantized();
  int count = 0;
  for (nn::Linear* layer : layers) {
    nn::Parameter& weight = layer->weight();
    const bool is_output = layer == layers.back() && layer->path() == "lm_head";
    const bool skipped =
        options.skip_modules.empty() ? is_output : is_skipped(layer->path(), options.skip_modules);
    const bool is_plain = std::ranges::any_of(
        plain, [&](const std::string& end) { return layer->path().ends_with("." + end); });
    if (skipped || is_plain || weight.requires_grad() || uses.count(&weight) > 1) continue;
    weight.set_quantization(options.quantization);
    ++count;
  }
  if (count == 0) {
    throw ConfigError(
        "quantisation: found no frozen linear layer to quantise, expected at least one; train an "
        "adapter (--use_peft) and check llm_int8_skip_modules");
  }
  return count;
}

void require_skip_modules(Model& model, const std::vector<std::string>& skip_modules) {
  std::set<std::string> paths, names;
  for (Block* block : model.blocks()) {
    for (nn::Linear* layer : block->linears()) {
      paths.insert(layer->path());
      names.insert(layer->path().substr(layer->path().rfind('.') + 1));
    }
  }
  // What is never quantised may be named, too.
  for (const nn::Parameter* parameter : model.parameters()) {
    paths.insert(parameter->name().substr(0, parameter->name().rfind('.')));
  }
  for (const std::string& entry : skip_modules) {
    const bool is_meant = std::ranges::any_of(
        paths, [&](const std::string& path) { return is_skipped(path, {entry}); });
    if (is_meant) continue;
    throw ConfigError(
        "llm_int8_skip_modules: found \"{}\", which means none of this model's modules, expected "
        "some of {}; correct or remove it",
        entry, fmt::join(names, ", "));
  }
}

}  // namespace strata::models
