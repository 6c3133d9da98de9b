#include "strata/hf/fp8_form.h"

#include <charconv>
#include <optional>
#include <string>

#include "strata/base/error.h"
#include "strata/hf/quantization_entry.h"

namespace strata::hf {
namespace {

using Tile = std::array<int64_t, 2>;

constexpr Tile kMatrix = {0, 0}, kRow = {1, 0};

Tile read_tile(const std::string& key, const Json& size) {
  if (!size.is_array() || size.size() != 2 || !is_size(size[0]) || !is_size(size[1])) {
    throw ConfigError(
        "config.json: quantization_config: {}: found {}, expected two positive whole numbers, or "
        "null; correct it",
        key, dump_python(size, -1));
  }
  return {size[0].get<int64_t>(), size[1].get<int64_t>()};
}

Fp8Form of_transformers(const Json& entry) {
  require_text(entry, "fmt", {"e4m3", "e4m3fn", "float8_e4m3", "float8_e4m3fn"});
  require_text(entry, "expert_dtype", {"fp8"});
  constexpr const char* kKey = "weight_block_size";
  const Json* size = value_of(entry, kKey);
  Fp8Form form{.tiles = {kMatrix}, .divides = true, .scale_end = "_scale_inv"};
  if (size != nullptr) form.tiles = {read_tile(kKey, *size)};
  if (!entry.contains(kKey)) form.tiles = {{128, 128}};
  return form;
}

// "128x128" in older files.
Json block_structure(const Json& weights) {
  const Json* found = value_of(weights, "block_structure");
  if (found == nullptr) return Json();
  if (!found->is_string()) return *found;
  const std::string text = found->get<std::string>();
  const size_t at = text.find('x');
  int64_t rows = 0, columns = 0;
  if (at == std::string::npos) return *found;
  const auto of_rows = std::from_chars(text.data(), text.data() + at, rows);
  const auto of_columns = std::from_chars(text.data() + at + 1, text.data() + text.size(), columns);
  if (of_rows.ec != std::errc() || of_columns.ec != std::errc()) return *found;
  return Json::array({rows, columns});
}

Tile tile_of_group(const std::string& key, const Json& weights) {
  const std::string strategy = text_of(weights, "strategy");
  if (strategy == "tensor" || strategy.empty()) return kMatrix;
  if (strategy == "channel") return kRow;
  if (strategy == "block") return read_tile(key + ".block_structure", block_structure(weights));
  const Json* size = value_of(weights, "group_size");
  if (strategy == "group" && size != nullptr && is_size(*size)) return {1, size->get<int64_t>()};
  refuse_value(key + ".strategy", weights, "tensor, channel, block, or group with a group_size");
}

void require_fp8(const std::string& key, const Json& weights) {
  const Json* bits = value_of(weights, "num_bits");
  const bool is_fp8 = text_of(weights, "type") == "float" && bits != nullptr && *bits == 8;
  if (!is_fp8) refuse_value(key, weights, "type float of 8 bits");
  const Json* symmetric = value_of(weights, "symmetric");
  if (symmetric != nullptr && *symmetric == false) refuse_value(key, weights, "symmetric values");
}

Fp8Form of_compressed_tensors(const Json& entry) {
  require_untransformed(entry);
  Fp8Form form{.tiles = {}, .divides = false, .scale_end = "_scale"};
  const Json* groups = value_of(entry, "config_groups");
  if (groups != nullptr && groups->is_object()) {
    for (const auto& [name, group] : groups->items()) {
      const Json* weights = value_of(group, "weights");
      if (weights == nullptr) continue;
      const std::string key = "config_groups." + name + ".weights";
      require_fp8(key, *weights);
      form.tiles.push_back(tile_of_group(key, *weights));
    }
  }
  if (form.tiles.empty()) form.tiles = {kRow, kMatrix};
  return form;
}

}  // namespace

bool announces_fp8(const Json& model_config) {
  const Json* entry = value_of(model_config, "quantization_config");
  if (entry == nullptr || !entry->is_object()) return false;
  const std::string method = text_of(*entry, "quant_method");
  if (method == "fp8" || method == "fbgemm_fp8") return true;
  const std::string format = text_of(*entry, "format");
  return method == "compressed-tensors" &&
         (format == "float-quantized" || format == "naive-quantized");
}

Fp8Form read_fp8_form(const Json& model_config) {
  const Json& entry = model_config.at("quantization_config");
  const std::string method = text_of(entry, "quant_method");
  if (method == "compressed-tensors") return of_compressed_tensors(entry);
  if (method == "fp8") return of_transformers(entry);
  return {.tiles = {kRow}, .divides = true, .scale_end = "_scale"};
}

}  // namespace strata::hf
