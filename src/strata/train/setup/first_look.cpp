#include "strata/train/setup/first_look.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/comm/agreement.h"
#include "strata/hf/export_index.h"
#include "strata/hf/fp8.h"
#include "strata/hf/hub/model.h"
#include "strata/hf/int_form.h"
#include "strata/hf/model_folder.h"
#include "strata/models/bert/config.h"
#include "strata/models/registry.h"
#include "strata/shard/storage_type.h"
#include "strata/train/setup/hub_place.h"
#include "strata/train/setup/model_config.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAnnounced = "announced\n";  // by rank 0's config.json

using TextOfWeights = std::function<std::string(const hf::ModelFolder& folder)>;

// Whether the folder holds weights and not only an index of files that were not fetched.
bool holds_weights(const fs::path& folder) {
  if (fs::exists(folder / hf::kModelWeightsFile)) return true;
  const fs::path index = folder / hf::kModelIndexFile;
  if (!fs::exists(index)) return false;
  const Json json = read_json_file(index);
  if (!json.is_object() || !json.contains("weight_map")) return true;  // an error of its own
  return std::ranges::all_of(json["weight_map"], [&](const Json& file) {
    return !file.is_string() || fs::exists(folder / file.get<std::string>());
  });
}

// What rank 0 may look into before there is a model; a plan may, where files are there.
std::optional<hf::ModelFolder> files_of(const config::ModelConfig& config, bool is_imagined,
                                        const comm::Group& world) {
  if (!is_imagined && world.rank() != 0) return {};
  fs::path folder = config.model_name_or_path;
  if (!is_imagined) folder = hf::locate_model(config.model_name_or_path, hub_place(config));
  const bool has_weights =
      fs::exists(folder / hf::kModelWeightsFile) || fs::exists(folder / hf::kModelIndexFile);
  if (!has_weights || (is_imagined && !holds_weights(folder))) return {};
  return hf::ModelFolder(folder);
}

// What rank 0's files say of weights in a form that config.json announces; nothing where it
// announces none, and in a plan without files. `check` looks at config.json and says how files are
// read.
std::optional<std::string> share_weights(const config::ModelConfig& config, bool is_imagined,
                                         comm::Group& world, std::string_view form,
                                         bool is_announced,
                                         const std::function<TextOfWeights()>& check) {
  if (config.model_name_or_path.empty()) return {};
  std::string text;
  bool has_files = !is_imagined;
  comm::all_or_nothing(world, fmt::format("looking for weights in {}", form), [&] {
    if (!is_announced) return;
    const TextOfWeights text_of = check();
    const std::optional<hf::ModelFolder> folder = files_of(config, is_imagined, world);
    has_files |= folder.has_value();
    if (folder) text = std::string(kAnnounced) + text_of(*folder);
  });
  if (!has_files) return {};
  if (!is_imagined) text = comm::broadcast_string(world, text);
  // Each rank has read a config.json of its own.
  comm::all_or_nothing(world, fmt::format("comparing what is in {}", form), [&] {
    if (text.starts_with(kAnnounced) == is_announced) return;
    throw FormatError(
        "config.json: found {} in {}, expected {}, as on rank 0; give all ranks one checkpoint",
        is_announced ? "weights" : "none", form, is_announced ? "none" : "weights");
  });
  if (!is_announced) return {};
  return text.substr(kAnnounced.size());
}

}  // namespace

void name_type(const config::ModelConfig& config, bool is_imagined, comm::Group& world,
               Json& model_config) {
  if (config.model_name_or_path.empty() || !shard::named_type(model_config).empty()) return;
  std::string name;
  comm::all_or_nothing(world, "looking at the type of the weights", [&] {
    if (const auto folder = files_of(config, is_imagined, world)) {
      name = shard::type_in_files(*folder);
    }
  });
  if (!is_imagined) name = comm::broadcast_string(world, name);
  if (!name.empty()) model_config["dtype"] = name;
}

std::optional<models::Fp8Tiles> share_fp8(const config::ModelConfig& config, bool is_imagined,
                                          comm::Group& world, const Json& model_config) {
  const bool is_announced = hf::announces_fp8(model_config);
  const auto text = share_weights(config, is_imagined, world, "fp8", is_announced, [&] {
    (void)hf::read_fp8_form(model_config);
    return [](const hf::ModelFolder& folder) { return models::text_of(models::fp8_tiles(folder)); };
  });
  if (!text) return {};
  return models::parse_fp8_tiles(*text);
}

std::optional<models::IntFormats> share_ints(const config::ModelConfig& config, bool is_imagined,
                                             comm::Group& world, const Json& model_config) {
  const bool is_announced = hf::announces_ints(model_config);
  const auto text = share_weights(config, is_imagined, world, "integers", is_announced, [&] {
    (void)hf::read_int_form(model_config);
    return
        [](const hf::ModelFolder& folder) { return models::text_of(models::int_formats(folder)); };
  });
  if (!text) return {};
  return models::parse_int_formats(*text);
}

LayersInFiles share_layers(const config::ModelConfig& config, bool is_imagined, comm::Group& world,
                           const Json& model_config) {
  if (config.model_name_or_path.empty()) return {};
  constexpr std::string_view kUntied = "untied ", kNewDense = "new dense ";
  std::string found;
  comm::all_or_nothing(world, "reading the weights' names", [&] {
    const std::optional<hf::ModelFolder> folder = files_of(config, is_imagined, world);
    if (!folder) {
      // In a plan without files their config.json tells.
      const bool is_new =
          is_imagined && models::announces_no_pooler(load_model_config(config, true));
      if (is_new) found += kNewDense;
      return;
    }
    if (models::create_model(model_config, {})->follow_tie(*folder)) found += kUntied;
    if (models::lacks_head_dense(*folder)) found += kNewDense;
  });
  if (!is_imagined) found = comm::broadcast_string(world, found);
  return {.is_untied = found.find(kUntied) != std::string::npos,
          .has_new_dense = found.find(kNewDense) != std::string::npos};
}

}  // namespace strata::train
