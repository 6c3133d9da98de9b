#include "strata/train/setup/first_look.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "strata/base/error.h"
#include "strata/comm/agreement.h"
#include "strata/hf/export_index.h"
#include "strata/hf/fp8.h"
#include "strata/hf/hub/model.h"
#include "strata/hf/model_folder.h"
#include "strata/models/registry.h"
#include "strata/shard/storage_type.h"
#include "strata/train/setup/hub_place.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAnnounced = "fp8\n";  // by rank 0's config.json

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
  if (config.model_name_or_path.empty()) return {};
  const bool is_announced = hf::announces_fp8(model_config);
  std::string text;
  bool has_files = !is_imagined;
  comm::all_or_nothing(world, "looking for weights in fp8", [&] {
    if (!is_announced) return;
    (void)hf::read_fp8_form(model_config);
    const std::optional<hf::ModelFolder> folder = files_of(config, is_imagined, world);
    has_files |= folder.has_value();
    if (folder) text = std::string(kAnnounced) + models::text_of(models::fp8_tiles(*folder));
  });
  if (!has_files) return {};
  if (!is_imagined) text = comm::broadcast_string(world, text);
  // Each rank has read a config.json of its own.
  comm::all_or_nothing(world, "comparing what is in fp8", [&] {
    if (text.starts_with(kAnnounced) == is_announced) return;
    throw FormatError(
        "config.json: found {} in fp8, expected {}, as on rank 0; give all ranks one checkpoint",
        is_announced ? "weights" : "none", is_announced ? "none" : "weights");
  });
  if (!is_announced) return {};
  return models::parse_fp8_tiles(text.substr(kAnnounced.size()));
}

bool share_tie(const config::ModelConfig& config, bool is_imagined, comm::Group& world,
               const Json& model_config) {
  if (config.model_name_or_path.empty()) return false;
  std::string is_untied;
  comm::all_or_nothing(world, "reading the weights' names", [&] {
    const std::optional<hf::ModelFolder> folder = files_of(config, is_imagined, world);
    if (!folder) return;
    if (models::create_model(model_config, {})->follow_tie(*folder)) is_untied = "untied";
  });
  return !(is_imagined ? is_untied : comm::broadcast_string(world, is_untied)).empty();
}

}  // namespace strata::train
