#include "strata/models/layer_types.h"

#include <algorithm>
#include <string>

#include "strata/base/error.h"

namespace strata::models {

std::optional<std::vector<bool>> read_layer_types(const ConfigReader& config,
                                                  int64_t num_hidden_layers) {
  const auto is_full = read_two_kinds(config, "layer_types", num_hidden_layers, {"full_attention"},
                                      {"sliding_attention"});
  if (!is_full) return std::nullopt;
  std::vector<bool> has_window = *is_full;
  has_window.flip();
  return has_window;
}

std::optional<std::vector<bool>> read_two_kinds(const ConfigReader& config, const std::string& key,
                                                int64_t num_hidden_layers, const LayerKind& first,
                                                const LayerKind& second) {
  if (!config.has(key)) return std::nullopt;
  const Json& list = config.at(key);
  if (!list.is_array() || static_cast<int64_t>(list.size()) != num_hidden_layers) {
    throw FormatError(
        "config.json: found {} = {}, expected a list of num_hidden_layers = {} texts; fix the file",
        key, list.dump(), num_hidden_layers);
  }
  std::vector<bool> is_first;
  for (const Json& entry : list) {
    const std::string kind = entry.is_string() ? entry.get<std::string>() : entry.dump();
    const auto is_named = [&](const LayerKind& names) {
      return std::ranges::find(names, kind) != names.end();
    };
    if (!is_named(first) && !is_named(second)) {
      throw ConfigError(
          "config.json: found \"{}\" in {}, expected {} or {}; use a checkpoint with such layers",
          kind, key, first.front(), second.front());
    }
    is_first.push_back(is_named(first));
  }
  return is_first;
}

}  // namespace strata::models
