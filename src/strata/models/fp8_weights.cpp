#include "strata/models/fp8_weights.h"

#include <sstream>

#include <fmt/format.h>

#include "strata/hf/fp8.h"
#include "strata/models/kept_weights.h"

namespace strata::models {
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
  for (const nn::Linear* layer : announced_linears(model, model_config.at("quantization_config"))) {
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
  for (const nn::Linear* layer : keepable_linears(model)) {
    nn::Parameter& weight = layer->weight();
    const auto tile = tiles.find(weight.name());
    if (tile == tiles.end()) continue;
    weight.set_storage_type(type);
    weight.set_quantization(
        {.format = ops::quant::fp8_format(tile->second[0], tile->second[1]), .compute = {}});
  }
}

}  // namespace strata::models
