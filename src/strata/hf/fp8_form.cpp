#include "strata/hf/fp8_form.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "strata/base/error.h"

namespace strata::hf {
namespace {

using Tile = std::array<int64_t, 2>;

constexpr Tile kMatrix = {0, 0}, kRow = {1, 0};

const Json* value_of(const Json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

std::string text_of(const Json& json, const char* key) {
  const Json* value = value_of(json, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

[[noreturn]] void refuse(const std::string& key, const Json& value, std::string_view expected) {
  throw ConfigError(
      "config.json: quantization_config: {}: found {}, expected {}; use a checkpoint of 16 bits",
      key, dump_python(value, -1), expected);
}

// Absent, or one of some texts, of which the first is told.
void require_text(const Json& entry, const char* key, std::initializer_list<const char*> expected) {
  const Json* value = value_of(entry, key);
  if (value == nullptr) return;
  const bool is_known = std::ranges::any_of(
      expected, [&](const char* text) { return *value == Json(std::string(text)); });
  if (!is_known) refuse(key, *value, *expected.begin());
}

bool is_size(const Json& n) {
  return n.is_number_integer() && n.get<int64_t>() > 0 && n.get<int64_t>() < (int64_t{1} << 31);
}

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

// Weights that were turned or thinned out before they were rounded.
void require_untransformed(const Json& entry) {
  const Json* transforms = value_of(entry, "transform_config");
  if (transforms != nullptr && !transforms->empty()) {
    refuse("transform_config", *transforms, "none");
  }
  const Json* sparsity = value_of(entry, "sparsity_config");
  if (sparsity == nullptr || sparsity->empty()) return;
  if (text_of(*sparsity, "format") != "dense") refuse("sparsity_config", *sparsity, "none");
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
  refuse(key + ".strategy", weights, "tensor, channel, block, or group with a group_size");
}

void require_fp8(const std::string& key, const Json& weights) {
  const Json* bits = value_of(weights, "num_bits");
  const bool is_fp8 = text_of(weights, "type") == "float" && bits != nullptr && *bits == 8;
  if (!is_fp8) refuse(key, weights, "type float of 8 bits");
  const Json* symmetric = value_of(weights, "symmetric");
  if (symmetric != nullptr && *symmetric == false) refuse(key, weights, "symmetric values");
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
