#include "strata/checkpoint/convert/text_model.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/models/registry.h"
#include "strata/shard/fp8_loading.h"
#include "strata/shard/int_loading.h"

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

// A matrix of one expert inside a tensor [experts, rows, columns] of all of a layer's, gate above
// up.
struct ExpertPart {
  std::string tensor;  // "model.layers.0.mlp.experts.gate_up_proj"
  int64_t expert;
  int64_t part, num_parts;  // of its rows
};

std::optional<ExpertPart> part_of_experts(const std::string& weight) {
  constexpr std::string_view kExperts = ".experts.", kWeight = ".weight";
  const size_t found = weight.rfind(kExperts);
  if (found == std::string::npos || !weight.ends_with(kWeight)) return std::nullopt;
  const std::string all = weight.substr(0, found + kExperts.size());
  const std::string rest = weight.substr(all.size(), weight.size() - all.size() - kWeight.size());
  ExpertPart part{};
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), part.expert);
  if (error != std::errc()) return std::nullopt;
  const std::string_view name(end, static_cast<size_t>(rest.data() + rest.size() - end));
  if (name == ".down_proj") return ExpertPart{all + "down_proj", part.expert, 0, 1};
  if (name == ".gate_proj") return ExpertPart{all + "gate_up_proj", part.expert, 0, 2};
  if (name == ".up_proj") return ExpertPart{all + "gate_up_proj", part.expert, 1, 2};
  return std::nullopt;
}

// What the tensor of all experts must be for them to have matrices of this shape.
std::vector<int64_t> shape_of_all(const std::vector<int64_t>& matrix, const ExpertPart& part,
                                  const hf::TensorInfo& info) {
  const int64_t count = info.shape.empty() ? 0 : info.shape[0];
  return {std::max(count, part.expert + 1), part.num_parts * matrix[0], matrix[1]};
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
  // Kimi K2.5's, as transformers reads it.
  if (result["model_type"] == "kimi_k2") result["model_type"] = "deepseek_v3";
  // The first files of EXAONE 4.5 call it so, as transformers knows.
  if (result["model_type"] == "exaone4_5_text") result["model_type"] = "exaone4";
  // What the whole model says of generation and storage holds for its language model, too.
  for (const char* key : {"dtype", "torch_dtype", "transformers_version", "bos_token_id",
                          "eos_token_id", "pad_token_id"}) {
    if (config.contains(key) && (!result.contains(key) || result[key].is_null())) {
      result[key] = config[key];
    }
  }
  return result;
}

void require_shape(const fs::path& path, const hf::TensorInfo& info,
                   const std::vector<int64_t>& shape, const std::vector<int64_t>& expected) {
  if (shape == expected) return;
  throw FormatError(
      "{}: tensor \"{}\" has shape [{}], text_config in config.json implies [{}]; use the "
      "config.json that belongs to these weights",
      path.string(), info.name, fmt::join(shape, ", "), fmt::join(expected, ", "));
}

void require_shape(const fs::path& path, const hf::TensorInfo& info,
                   const std::vector<int64_t>& expected) {
  require_shape(path, info, info.shape, expected);
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
  const std::vector<std::string> listed = hf::fp8_scales(folder_);
  const std::set<std::string_view> scales(listed.begin(), listed.end());
  const bool is_decoded = !scales.empty() || hf::announces_ints(folder_.config());
  for (const std::string& name : hf::names_of_copy(folder_)) {
    if (scales.contains(name) || (is_decoded && hf::is_fp8_activation_scale(name))) continue;
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
  std::map<std::string, const nn::Parameter*> fused;  // by tensors of all experts, of the last
  for (const nn::Parameter* parameter : model->parameters()) {
    const auto source = sources.find(parameter->name());
    if (source != sources.end()) {
      if (auto ints = hf::find_int_weight(folder_, source->second)) {
        require_shape(path_, *ints->codes, ints->dims(), parameter->shape());
        add_ints(*parameter, source->second, std::move(*ints));
        sources.erase(source);
        continue;
      }
      const hf::TensorInfo& info = *folder_.find(source->second);
      require_shape(path_, info, parameter->shape());
      add_weight(*parameter, info, 0);
      sources.erase(source);
      continue;
    }
    const auto part = part_of_experts(parameter->name());
    const auto all = part ? sources.find(part->tensor) : sources.end();
    if (all == sources.end()) {
      throw FormatError(
          "{}: found no tensor \"{}\" of the language model, expected every weight that "
          "text_config "
          "in config.json implies; use a complete checkpoint",
          path_.string(), parameter->name());
    }
    const hf::TensorInfo& info = *folder_.find(all->second);
    require_shape(path_, info, shape_of_all(parameter->shape(), *part, info));
    const int64_t index = part->expert * part->num_parts + part->part;
    add_weight(*parameter, info, index * parameter->numel());
    fused[part->tensor] = parameter;
  }
  for (const auto& [tensor, last] : fused) {
    const ExpertPart part = *part_of_experts(last->name());
    const hf::TensorInfo& info = *folder_.find(sources.at(tensor));
    require_shape(path_, info,
                  {part.expert + 1, part.num_parts * last->shape()[0], last->shape()[1]});
    sources.erase(tensor);
  }
  std::erase_if(sources, [&](const auto& source) {
    return model->ignores(source.first) || hf::is_void_bias(folder_, source.second);
  });
  if (sources.empty()) return;
  throw FormatError(
      "{}: found \"{}\" in the language model, which text_config in config.json does not imply, "
      "expected only its weights; use the config.json that belongs to these weights",
      path_.string(), sources.begin()->second);
}

void TextModelState::add_weight(const nn::Parameter& parameter, const hf::TensorInfo& info,
                                int64_t begin) {
  auto fp8 = hf::find_fp8_weight(folder_, info.name);
  tensors_.push_back({.kind = kParameter,
                      .weight = parameter.name(),
                      .dtype = fp8 ? shard::decoded_type(folder_) : info.dtype,
                      .shape = parameter.shape()});
  sources_.push_back({info.name, begin, parameter.numel(), std::move(fp8), {}});
}

void TextModelState::add_ints(const nn::Parameter& parameter, const std::string& name,
                              hf::IntWeight ints) {
  tensors_.push_back({.kind = kParameter,
                      .weight = parameter.name(),
                      .dtype = ints.dtype(),
                      .shape = parameter.shape()});
  sources_.push_back({name, 0, parameter.numel(), {}, std::move(ints)});
}

void TextModelState::read(size_t index, std::span<std::byte> out) {
  const Source& source = sources_[index];
  if (source.fp8) {
    shard::read_fp8(folder_, *source.fp8, source.begin, tensors_[index].dtype, out);
    return;
  }
  if (source.ints) {
    shard::read_ints(folder_, *source.ints, source.begin, tensors_[index].dtype, out);
    return;
  }
  const std::span<const std::byte> bytes = view(index);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  forget(index);
}

void TextModelState::forget(size_t index) { forget_pages(view(index)); }

std::span<const std::byte> TextModelState::view(size_t index) {
  const Source& source = sources_[index];
  if (source.fp8 || source.ints) return {};
  const hf::TensorInfo& info = *folder_.find(source.tensor);
  const size_t element = hf::size_of(info.dtype);
  return folder_.bytes(info).subspan(static_cast<size_t>(source.begin) * element,
                                     static_cast<size_t>(source.count) * element);
}

std::string TextModelState::verify() { return "layout only: safetensors files hold no checksums"; }

}  // namespace strata::checkpoint
