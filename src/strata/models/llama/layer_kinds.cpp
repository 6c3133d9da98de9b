// Settings of families with local and global layers: a window in the local ones, a rotation of each
// kind.
#include <algorithm>
#include <string>

#include "strata/base/error.h"
#include "strata/models/config_reader.h"
#include "strata/models/layer_types.h"
#include "strata/models/llama/config.h"
#include "strata/models/llama/config_parts.h"
#include "strata/models/rope_config.h"

namespace strata::models {
namespace {

constexpr const char* kLocal = "sliding_attention";
constexpr const char* kGlobal = "full_attention";

// An object under `key`, or null where there is none.
Json object_of(const Json& json, const std::string& key, const std::string& name) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null() || found->is_object()) {
    return found == json.end() ? Json() : *found;
  }
  throw FormatError("config.json: found {} = {}, expected an object; fix the file", name,
                    dump_python(*found, /*indent=*/-1));
}

// `rope_parameters` by kind, or the older keys, of which rope_scaling is of global layers alone.
nn::RopeOptions parse_rotation(const ConfigReader& config, const LlamaConfig& c,
                               const std::string& kind, double default_theta) {
  Json rope = {{"rope_type", "default"}};
  const Json all = object_of(config.json(), "rope_parameters", "rope_parameters");
  if (!all.is_null()) {
    for (const auto& [key, value] : all.items()) {
      if (key == kLocal || key == kGlobal) continue;
      throw FormatError(
          "config.json: found rope_parameters.{}, expected {} and {} in a model with both kinds of "
          "layers; fix the file",
          key, kLocal, kGlobal);
    }
    const Json of_kind = object_of(all, kind, "rope_parameters." + kind);
    if (!of_kind.is_null()) rope = of_kind;
  }
  const Json scaling = object_of(config.json(), "rope_scaling", "rope_scaling");
  if (kind == kGlobal && !scaling.is_null()) rope.update(scaling);
  if (!rope.contains("rope_theta")) rope["rope_theta"] = default_theta;
  const Json keys = {{"rope_parameters", rope}};
  const nn::RopeOptions options =
      parse_rope(ConfigReader(keys), {c.head_dim, c.max_position_embeddings});
  if (options.length_of_change() != 0) {
    throw ConfigError(
        "config.json: found rope_type \"{}\" of {} layers, expected one that does not change with "
        "the text's length; use a checkpoint with default, linear, yarn or llama3",
        rope.value("rope_type", rope.value("type", "")), kind);
  }
  return options;
}

}  // namespace

std::vector<int64_t> parse_windows(const ConfigReader& config, int64_t num_layers, int64_t period,
                                   int64_t default_window) {
  const auto types = read_layer_types(config, num_layers);
  const bool is_null = config.json().contains("sliding_window") && !config.has("sliding_window");
  const int64_t window = config.positive_integer("sliding_window", default_window);
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < num_layers; ++i) {
    const bool is_local = types ? types->at(static_cast<size_t>(i)) : (i + 1) % period != 0;
    if (is_local && is_null) {
      throw FormatError(
          "config.json: found sliding_window = None with sliding-window layers, expected an "
          "integer of at least 1; fix the file");
    }
    windows.push_back(is_local ? window : 0);
  }
  return windows;
}

void parse_rotations(const ConfigReader& config, LlamaConfig& c, const RopeThetas& defaults) {
  c.rope = parse_rotation(config, c, kGlobal, defaults.global);
  if (std::ranges::count(c.windows, 0) < std::ssize(c.windows)) {
    c.local_rope = parse_rotation(config, c, kLocal, defaults.local);
  }
}

}  // namespace strata::models
