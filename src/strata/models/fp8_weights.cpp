#include "strata/models/fp8_weights.h"

#include <algorithm>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/hf/fp8.h"
#include "strata/models/skipped_modules.h"
#include "strata/models/vocabulary.h"

namespace strata::models {
namespace {

// What config.json calls the list, by who wrote it.
constexpr const char* kPlainLists[] = {"modules_to_not_convert", "ignored_layers", "ignore"};

// Modules that stay as they are; those of compressed-tensors may be marked as expressions.
SkipModules plain_modules(const Json& quantization) {
  constexpr std::string_view kExpression = "re:";
  std::vector<std::string> names = {"lm_head"};
  for (const char* key : kPlainLists) {
    const auto found = quantization.find(key);
    if (found == quantization.end() || !found->is_array()) continue;
    for (const Json& entry : *found) {
      if (!entry.is_string()) continue;
      std::string name = entry.get<std::string>();
      if (name.starts_with(kExpression)) name.erase(0, kExpression.size());
      names.push_back(std::move(name));
    }
  }
  return names;
}

std::set<const nn::Parameter*> vocabularies(Model& model) {
  std::set<const nn::Parameter*> found;
  for (const VocabularyWeight& weight : vocabulary_weights(model)) found.insert(weight.parameter);
  return found;
}

}  // namespace

Fp8Tiles fp8_tiles(const hf::ModelFolder& folder) {
  Fp8Tiles tiles;
  for (const std::string& name : folder.names()) {
    const auto weight = hf::find_fp8_weight(folder, name);
    if (!weight || weight->codes->shape.size() != 2) continue;
    tiles[name] = {weight->tile_rows, weight->tile_columns};
  }
  return tiles;
}

Fp8Tiles announced_fp8_tiles(Model& model, const Json& model_config) {
  Fp8Tiles tiles;
  if (!hf::announces_fp8(model_config)) return tiles;
  const SkippedModules plain(plain_modules(model_config.at("quantization_config")),
                             "config.json: quantization_config");
  for (const nn::Linear* layer : quantizable_linears(model)) {
    if (plain.contains(layer->path())) continue;
    const std::vector<int64_t>& shape = layer->weight().shape();
    tiles[layer->weight().name()] = hf::announced_fp8_tile(model_config, shape[0], shape[1]);
  }
  return tiles;
}

std::string text_of(const Fp8Tiles& tiles) {
  std::string text;
  for (const auto& [name, tile] : tiles) {
    text += fmt::format("{} {} {}\n", tile[0], tile[1], name);
  }
  return text;
}

Fp8Tiles parse_fp8_tiles(const std::string& text) {
  Fp8Tiles tiles;
  std::istringstream lines(text);
  int64_t rows = 0, columns = 0;
  std::string name;
  while (lines >> rows >> columns && lines.get() == ' ' && std::getline(lines, name)) {
    tiles[name] = {rows, columns};
  }
  return tiles;
}

void keep_fp8(Model& model, const Fp8Tiles& tiles, at::ScalarType type) {
  const std::set<const nn::Parameter*> plain = vocabularies(model);
  for (const nn::Linear* layer : quantizable_linears(model)) {
    nn::Parameter& weight = layer->weight();
    const auto tile = tiles.find(weight.name());
    if (tile == tiles.end() || plain.contains(&weight)) continue;
    if (weight.requires_grad() || weight.is_transposed()) continue;
    weight.set_storage_type(type);
    weight.set_quantization(
        {.format = ops::quant::fp8_format(tile->second[0], tile->second[1]), .compute = {}});
  }
}

}  // namespace strata::models
