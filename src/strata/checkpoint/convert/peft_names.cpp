#include "strata/checkpoint/convert/peft_names.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/checkpoint/convert/param_groups.h"
#include "strata/hf/adapter_files.h"

namespace strata::checkpoint {
namespace {

// PEFT's layers hold for each adapter, by its name, layers of weight and bias, tensors, or (DoRA) a
// layer that stands for its one tensor.
constexpr std::string_view kLayers[] = {"lora_A", "lora_B"};
constexpr std::string_view kTensors[] = {"lora_embedding_A", "lora_embedding_B",      "ia3_l",
                                         "vera_lambda_b",    "vera_lambda_d",         "vera_A",
                                         "vera_B",           "trainable_tokens_delta"};
constexpr std::string_view kMagnitude = "lora_magnitude_vector";
constexpr std::string_view kSaved = "modules_to_save";
constexpr const char* kAdapter = "default";

using Path = std::vector<std::string>;

Path path_of(const std::string& name) {
  Path path;
  std::istringstream rest(name);
  for (std::string part; std::getline(rest, part, '.');) path.push_back(part);
  return path;
}

std::string text_of(const Path& path) { return fmt::format("{}", fmt::join(path, ".")); }

template <size_t N>
bool contains(const std::string_view (&names)[N], std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

// The place of a branch's tensor, whose name in PEFT's file ends there or, of a layer, one later.
size_t branch_in(const Path& path) {
  const auto found = std::ranges::find_if(path, [](const std::string& part) {
    return contains(kLayers, part) || contains(kTensors, part) || part == kMagnitude;
  });
  return static_cast<size_t>(found - path.begin());
}

// What stays of a tensor of a branch without the adapter's name after it.
void drop_adapter_name(Path& path, size_t branch) {
  const size_t num_behind = path.size() - branch - 1;
  const auto behind = path.begin() + static_cast<ptrdiff_t>(branch) + 1;
  if (path[branch] == kMagnitude) {
    const bool is_layer = num_behind == 2 && path.back() == "weight";
    if (is_layer || (num_behind == 1 && path.back() != "weight")) path.erase(behind, path.end());
    return;
  }
  if (num_behind == (contains(kLayers, path[branch]) ? size_t{2} : size_t{1})) path.erase(behind);
}

const std::string kPromptInRun = std::string(hf::kAdapterKeyPrefix) + hf::kPromptKey;
const std::string kEncoderInRun = std::string(hf::kAdapterKeyPrefix) + hf::kPromptEncoder;

// What PEFT trains of a prompt: an embedding in a module of the adapter's name, with the layers of
// a projection behind it. Nothing for other names.
std::string encoder_name_in_run(const std::string& name) {
  if (!name.starts_with(hf::kPromptEncoder)) return "";
  const size_t adapter = std::string_view(hf::kPromptEncoder).size();
  const size_t behind = name.find('.', adapter);
  return behind == std::string::npos ? "" : kEncoderInRun + name.substr(behind + 1);
}

bool begins_with_prefix(const std::string& name) { return name.starts_with(hf::kAdapterKeyPrefix); }

std::string without_prefix(const std::string& name) {
  return name.substr(std::string_view(hf::kAdapterKeyPrefix).size());
}

// Whether the layer has a branch in this state, so that PEFT's layer around it holds its bias.
bool is_wrapped(const SavedState& state, const std::string& layer) {
  const std::string path = hf::kAdapterKeyPrefix + layer;
  return std::ranges::any_of(state.tensors(), [&](const SavedTensor& tensor) {
    if (!tensor.weight.starts_with(path)) return false;
    const std::string_view rest = std::string_view(tensor.weight).substr(path.size());
    return rest.starts_with(".lora_") || rest.starts_with(".vera_lambda_");
  });
}

// A weight of the base in PEFT's file.
std::string base_name_in_file(const SavedState& state, const std::string& weight) {
  constexpr std::string_view kBias = ".bias";
  if (weight.ends_with(kBias)) {
    const std::string layer = weight.substr(0, weight.size() - kBias.size());
    if (is_wrapped(state, layer)) return hf::kAdapterKeyPrefix + layer + ".base_layer.bias";
  }
  return hf::kAdapterKeyPrefix + weight;
}

// Names of modules that the adapter's config saves whole.
std::vector<std::string> saved_modules(const SavedState& state) {
  std::vector<std::string> names;
  const Json& config = state.facts().adapter_config;
  const auto listed = config.is_object() ? config.find(kSaved) : config.end();
  if (config.is_object() && listed != config.end() && listed->is_array()) {
    for (const Json& name : *listed) {
      if (name.is_string()) names.push_back(name.get<std::string>());
    }
    return names;
  }
  std::istringstream rest(setting_of(state, "lora_modules_to_save"));
  for (std::string name; std::getline(rest, name, ',');) names.push_back(name);
  return names;
}

// How many parts of the weight's path name the module that is saved whole; 0: none does.
size_t saved_parts(const SavedState& state, const Path& path) {
  const std::vector<std::string> names = saved_modules(state);
  for (size_t count = 1; count < path.size(); ++count) {
    const std::string module =
        text_of({path.begin(), path.begin() + static_cast<ptrdiff_t>(count)});
    if (std::ranges::any_of(names, [&](const auto& name) { return module.ends_with(name); })) {
      return count;
    }
  }
  return path.back() == "bias" ? 0 : path.size() - 1;
}

}  // namespace

std::string name_in_run(const std::string& name) {
  if (name == hf::kPromptKey) return kPromptInRun;
  if (const std::string encoder = encoder_name_in_run(name); !encoder.empty()) return encoder;
  if (!name.starts_with("base_model.")) return name;
  Path path = path_of(name);
  if (const size_t branch = branch_in(path); branch < path.size()) {
    drop_adapter_name(path, branch);
    return text_of(path);
  }
  if (!begins_with_prefix(name)) return name;
  const auto saved = std::ranges::find(path, kSaved);
  if (path.end() - saved > 2) {
    path.erase(saved, saved + 2);
    return without_prefix(text_of(path));
  }
  const auto base = std::ranges::find(path, "base_layer");
  if (base != path.end() && path.back() == "bias") path.erase(base);
  const bool is_of_base = std::ranges::none_of(path, [](const std::string& part) {
    return part == "base_layer" || part == "original_module" || part.starts_with("prompt_enc");
  });
  return is_of_base && path.back() != hf::kPromptKey ? without_prefix(text_of(path)) : name;
}

void name_prompts_in_run(std::vector<SavedTensor>& tensors) {
  const bool has_projection = std::ranges::any_of(tensors, [](const SavedTensor& tensor) {
    return tensor.weight.starts_with(kEncoderInRun + "transform.");
  });
  if (has_projection) return;
  for (SavedTensor& tensor : tensors) {
    if (tensor.weight == kEncoderInRun + "embedding.weight") tensor.weight = kPromptInRun;
  }
}

std::string name_in_file(const SavedState& state, const SavedTensor& tensor) {
  if (tensor.weight.ends_with(hf::kPromptKey)) return hf::kPromptKey;
  if (!state.is_adapter() || begins_with_prefix(tensor.weight)) return tensor.weight;
  return base_name_in_file(state, tensor.weight);
}

std::string name_in_optimizer(const SavedState& state, const std::string& weight) {
  if (!state.is_adapter()) return weight;
  const std::string encoder = fmt::format("{}{}.", hf::kPromptEncoder, kAdapter);
  if (weight.ends_with(hf::kPromptKey)) return encoder + "embedding.weight";
  if (weight.starts_with(kEncoderInRun)) return encoder + weight.substr(kEncoderInRun.size());
  Path path = path_of(weight);
  if (!begins_with_prefix(weight)) {
    const size_t count = saved_parts(state, path);
    if (count == 0) return base_name_in_file(state, weight);
    path.insert(path.begin() + static_cast<ptrdiff_t>(count), {std::string(kSaved), kAdapter});
    return hf::kAdapterKeyPrefix + text_of(path);
  }
  const size_t branch = branch_in(path);
  if (branch == path.size()) return weight;
  path.insert(path.begin() + static_cast<ptrdiff_t>(branch) + 1, kAdapter);
  if (path.size() == branch + 2 && path[branch] == kMagnitude) path.emplace_back("weight");
  return text_of(path);
}

}  // namespace strata::checkpoint
