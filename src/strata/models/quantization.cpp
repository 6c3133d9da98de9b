// Choice of the layers that are quantised. Never: arithmetic.
#include "strata/models/quantization.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/hf/model_folder.h"
#include "strata/hf/mxfp4.h"
#include "strata/models/fused_linears.h"
#include "strata/models/registry.h"
#include "strata/models/skipped_modules.h"
#include "strata/nn/linear.h"

namespace strata::models {
namespace {

// A value of quantization_config; null says what a missing one says.
const Json* value_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

[[noreturn]] void fail_value(const char* key, const Json& found, std::string_view expected) {
  throw ConfigError("config.json: {}: found {}, expected {}; correct it", key,
                    dump_python(found, -1), expected);
}

std::string text_of(const Json& json, const char* key, const std::string& missing) {
  const Json* value = value_of(json, key);
  if (value == nullptr) return missing;
  if (!value->is_string()) fail_value(key, *value, "a name in quotes, or null");
  return value->get<std::string>();
}

bool flag_of(const Json& json, const char* key) {
  const Json* value = value_of(json, key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) fail_value(key, *value, "true, false or null");
  return value->get<bool>();
}

SkipModules skip_modules_of(const Json& json) {
  constexpr const char* kKey = "llm_int8_skip_modules";
  const Json* found = value_of(json, kKey);
  if (found == nullptr) return {};
  const auto is_text = [](const Json& entry) { return entry.is_string(); };
  if (!found->is_array() || !std::all_of(found->begin(), found->end(), is_text)) {
    fail_value(kKey, *found, "a list of names of modules, or null");
  }
  return found->get<std::vector<std::string>>();
}

ops::quant::Kind kind_of_4bit(const Json& json) {
  constexpr const char* kKey = "bnb_4bit_quant_type";
  const std::string name = text_of(json, kKey, "fp4");
  if (name != "fp4" && name != "nf4") fail_value(kKey, name, "nf4 or fp4");
  return ops::quant::parse_kind(name, kKey);
}

// As transformers writes a type: its name, with or without "torch.".
at::ScalarType stored_compute_type(const Json& json) {
  constexpr const char* kKey = "bnb_4bit_compute_dtype";
  std::string name = text_of(json, kKey, "float32");
  if (constexpr std::string_view kModule = "torch."; name.starts_with(kModule)) {
    name.erase(0, kModule.size());
  }
  const auto type = compute_type_of(name);
  if (!type) fail_value(kKey, name, "float32, bfloat16 or float16");
  return *type;
}

std::string last_name(const nn::Linear& layer) {
  return layer.path().substr(layer.path().rfind('.') + 1);
}

}  // namespace

std::optional<QuantizationOptions> stored_quantization(const Json& model_config) {
  if (!hf::announces_codes(model_config)) return {};
  const auto entry = model_config.find("quantization_config");
  const std::string method = text_of(*entry, "quant_method", "");
  const bool in_4bit = flag_of(*entry, "load_in_4bit") || flag_of(*entry, "_load_in_4bit");
  const bool in_8bit = flag_of(*entry, "load_in_8bit") || flag_of(*entry, "_load_in_8bit");
  if (method != "bitsandbytes" || in_4bit == in_8bit) {
    const std::string format = text_of(*entry, "format", "");
    throw ConfigError(
        "config.json: quantization_config: found quant_method \"{}\"{}, expected bitsandbytes with "
        "load_in_4bit or load_in_8bit, gptq, awq, fp8, fbgemm_fp8, mxfp4, or compressed-tensors of "
        "the format pack-quantized, float-quantized or naive-quantized; use a checkpoint without "
        "quantisation",
        method, format.empty() ? "" : fmt::format(" (format \"{}\")", format));
  }
  QuantizationOptions options;
  options.takes_experts = false;
  if (in_8bit) {
    options.quantization.format.kind = ops::quant::Kind::kInt8;
    constexpr const char* kThreshold = "llm_int8_threshold";
    if (const Json* threshold = value_of(*entry, kThreshold)) {
      if (!threshold->is_number()) fail_value(kThreshold, *threshold, "a number, or null");
      options.quantization.threshold = threshold->get<double>();
    }
  } else {
    options.quantization.format.kind = kind_of_4bit(*entry);
    options.quantization.format.nested = flag_of(*entry, "bnb_4bit_use_double_quant");
    constexpr const char* kBlock = "bnb_4bit_blocksize";  // ours; the reference reads each tensor's
    if (const Json* block = value_of(*entry, kBlock)) {
      if (!block->is_number_integer()) fail_value(kBlock, *block, "a whole number, or null");
      options.quantization.format.block = block->get<int64_t>();
      ops::quant::check_block(options.quantization.format.block, "config.json: bnb_4bit_blocksize");
    }
    options.quantization.compute = stored_compute_type(*entry);
  }
  options.skip_modules = skip_modules_of(*entry);
  return options;
}

std::optional<at::ScalarType> compute_type_of(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  return {};
}

static void require_rows_of_outputs(const nn::Linear& layer) {
  if (!layer.weight().is_transposed()) return;
  throw ConfigError(
      "quantisation: found \"{}\", whose file holds it as [in, out] (GPT-2's Conv1D), expected "
      "[out, in]; leave the base as it is (no load_in_4bit, no load_in_8bit)",
      layer.weight().name());
}

// Parameters of all experts, by their names, and layers of experts that have none.
static std::map<std::string, nn::Parameter*> weights_of_experts(Model& model) {
  std::map<std::string, nn::Parameter*> weights;
  for (Block* block : model.blocks()) {
    auto* fused = dynamic_cast<HasFusedLinears*>(block);
    if (fused == nullptr) continue;
    for (const nn::ExpertParameter* matrices : fused->expert_parameters()) {
      // Of several the layers are below.
      if (matrices->weights.size() == 1) weights[matrices->name] = matrices->weights[0];
    }
    for (const nn::Linear* layer : fused->nameless_experts()) {
      weights[layer->path()] = &layer->weight();
    }
  }
  return weights;
}

int quantize_base(Model& model, const QuantizationOptions& options) {
  const SkippedModules skipped(options.skip_modules);
  int count = 0;
  for (const nn::Linear* layer : quantizable_linears(model)) {
    if (skipped.contains(layer->path()) || layer->weight().requires_grad()) continue;
    require_rows_of_outputs(*layer);
    layer->weight().set_quantization(options.quantization);
    ++count;
  }
  for (const auto& [path, weight] : weights_of_experts(model)) {
    const bool is_plain = !options.takes_experts || skipped.contains(path);
    if (is_plain || weight->requires_grad() || weight->quantization()) continue;
    weight->set_quantization(options.quantization);
    ++count;
  }
  if (count == 0) {
    throw ConfigError(
        "quantisation: found no frozen linear layer to quantise, expected at least one; train an "
        "adapter (--use_peft) and check llm_int8_skip_modules");
  }
  return count;
}

bool is_in_mxfp4(const Json& model_config, const nn::Parameter& parameter) {
  return parameter.shape().size() == 3 && hf::announces_mxfp4(model_config);
}

void keep_mxfp4(Model& model, const Json& model_config, at::ScalarType type) {
  for (nn::Parameter* parameter : model.parameters()) {
    const bool is_packed = is_in_mxfp4(model_config, *parameter) &&
                           parameter->shape()[1] % ops::quant::kMxfp4Block == 0;
    if (!is_packed || parameter->requires_grad()) continue;
    parameter->set_storage_type(type);
    parameter->set_quantization({.format = ops::quant::kMxfp4Format, .compute = {}});
  }
}

std::optional<std::vector<std::string>> plain_layers(const hf::ModelFolder& folder,
                                                     const SkipModules& skip_modules) {
  if (!skip_modules) return {};
  const SkippedModules skipped(skip_modules), by_default(std::nullopt);
  const auto model = create_model(folder.config(), {});
  model->follow_tie(folder);
  const std::vector<nn::Linear*> layers = quantizable_linears(*model);
  bool is_default = true;
  std::set<std::string> mixed;  // names of which some become codes
  for (const nn::Linear* layer : layers) {
    const bool is_plain = skipped.contains(layer->path());
    is_default &= is_plain == by_default.contains(layer->path());
    if (!is_plain) mixed.insert(last_name(*layer));
  }
  if (is_default) return {};
  std::vector<std::string> names;
  for (const nn::Linear* layer : layers) {
    if (!skipped.contains(layer->path())) continue;
    const std::string name = mixed.contains(last_name(*layer)) ? layer->path() : last_name(*layer);
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

void require_skip_modules(Model& model, const SkipModules& skip_modules) {
  if (!skip_modules) return;
  std::set<std::string> paths, names;
  for (Block* block : model.blocks()) {
    for (nn::Linear* layer : block->linears()) {
      paths.insert(layer->path());
      names.insert(last_name(*layer));
    }
  }
  // What is never quantised may be named, too.
  for (const nn::Parameter* parameter : model.parameters()) {
    paths.insert(parameter->name().substr(0, parameter->name().rfind('.')));
  }
  for (const std::string& entry : *skip_modules) {
    const SkippedModules skipped(std::vector{entry});
    const bool is_meant =
        std::ranges::any_of(paths, [&](const std::string& path) { return skipped.contains(path); });
    if (is_meant) continue;
    throw ConfigError(
        "llm_int8_skip_modules: found \"{}\", which matches none of this model's modules, expected "
        "some of {}; correct or remove it",
        entry, fmt::join(names, ", "));
  }
}

}  // namespace strata::models
