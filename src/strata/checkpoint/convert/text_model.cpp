#include "strata/checkpoint/convert/text_model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/models/registry.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHeadWeight = "lm_head.weight";

// transformers moved the language model from "language_model.model" to "model.language_model", and
// its output layer out of it; files have either, and some neither "model.".
std::optional<std::string> name_in_text_model(const std::string& name) {
  constexpr std::string_view kModel = "model.", kPart = "language_model.";
  if (name == kHeadWeight) return name;
  std::string_view rest = name;
  if (rest.starts_with(kModel)) rest.remove_prefix(kModel.size());
  if (!rest.starts_with(kPart)) return std::nullopt;
  rest.remove_prefix(kPart.size());
  if (rest == kHeadWeight) return std::string(rest);
  if (rest.starts_with(kModel)) rest.remove_prefix(kModel.size());
  return std::string(kModel) + std::string(rest);
}

// The module that is not the language model's: "vision_tower" of
// "model.vision_tower.patch_embed.weight".
std::string module_of(std::string name) {
  constexpr std::string_view kModel = "model.";
  if (name.starts_with(kModel)) name = name.substr(kModel.size());
  return name.substr(0, name.find('.'));
}

Json text_config_of(const Json& config, const fs::path& folder) {
  const auto text = config.find("text_config");
  if (text == config.end() || !text->is_object() || !text->contains("model_type")) {
    throw ConfigError(
        "{}: found no text_config with a model_type in config.json, expected a model of texts and "
        "images; a model of texts alone needs no conversion",
        folder.string());
  }
  Json result = *text;
  // What the whole model says of generation and storage holds for its language model, too.
  for (const char* key : {"dtype", "torch_dtype", "transformers_version", "bos_token_id",
                          "eos_token_id", "pad_token_id"}) {
    if (config.contains(key) && (!result.contains(key) || result[key].is_null())) {
      result[key] = config[key];
    }
  }
  return result;
}

}  // namespace

TextModelState::TextModelState(const fs::path& folder)
    : SavedState(folder), folder_(folder), config_(text_config_of(folder_.config(), folder)) {
  if (hf::announces_codes(folder_.config())) {
    throw ConfigError(
        "{}: found codes (quantization_config in config.json), expected plain weights; take the "
        "text model out of the model that they were made from",
        folder.string());
  }
  facts_.format = "Hugging Face model, the language model of it";
  list_weights();
}

void TextModelState::list_weights() {
  std::map<std::string, std::string> sources;
  std::set<std::string> others;
  for (const std::string& name : folder_.names()) {
    if (const auto own = name_in_text_model(name)) {
      sources[*own] = name;
    } else {
      others.insert(module_of(name));
    }
  }
  left_out_.assign(others.begin(), others.end());
  // Which of them are tied the file says more surely than the keys of two configurations.
  config_["tie_word_embeddings"] = !sources.contains(kHeadWeight);
  const auto model = models::create_model(config_, {.is_untied = sources.contains(kHeadWeight)});
  config_["architectures"] = Json::array({model->architecture()});
  for (const nn::Parameter* parameter : model->parameters()) {
    const auto source = sources.find(parameter->name());
    if (source == sources.end()) {
      throw FormatError(
          "{}: found no tensor \"{}\" of the language model, expected every weight that "
          "text_config "
          "in config.json implies; use a complete checkpoint",
          path_.string(), parameter->name());
    }
    const hf::TensorInfo& info = *folder_.find(source->second);
    if (info.shape != parameter->shape()) {
      throw FormatError(
          "{}: tensor \"{}\" has shape [{}], text_config in config.json implies [{}]; use the "
          "config.json that belongs to these weights",
          path_.string(), info.name, fmt::join(info.shape, ", "),
          fmt::join(parameter->shape(), ", "));
    }
    tensors_.push_back({.kind = kParameter,
                        .weight = parameter->name(),
                        .dtype = info.dtype,
                        .shape = info.shape});
    sources_.push_back(source->second);
    sources.erase(source);
  }
  std::erase_if(sources, [&](const auto& source) { return model->ignores(source.first); });
  if (sources.empty()) return;
  throw FormatError(
      "{}: found \"{}\" in the language model, which text_config in config.json does not imply, "
      "expected only its weights; use the config.json that belongs to these weights",
      path_.string(), sources.begin()->second);
}

void TextModelState::read(size_t index, std::span<std::byte> out) {
  const std::span<const std::byte> bytes = view(index);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  forget(index);
}

void TextModelState::forget(size_t index) { forget_pages(view(index)); }

std::span<const std::byte> TextModelState::view(size_t index) {
  return folder_.bytes(*folder_.find(sources_[index]));
}

std::string TextModelState::verify() { return "layout only: safetensors files hold no checksums"; }

}  // namespace strata::checkpoint
