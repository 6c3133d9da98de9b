#include "strata/train/setup/named_folders.h"

#include <algorithm>
#include <string>
#include <vector>

#include "strata/base/error.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/export_index.h"
#include "strata/hf/hub/model.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

bool has_any(const fs::path& folder, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (fs::exists(folder / name)) return true;
  }
  return false;
}

// Checkpoints of FULL_STATE_DICT have whole files beside the manifest.
void refuse_shards(const char* setting, const fs::path& folder) {
  if (!fs::exists(folder / "manifest.json") ||
      has_any(folder, {hf::kModelWeightsFile, hf::kModelIndexFile, hf::kAdapterWeightsFile})) {
    return;
  }
  throw ConfigError(
      "{}: found a sharded checkpoint of a run in {}, expected whole files; continue its run with "
      "--resume_from_checkpoint {}, or run strata convert {} OUT --to safetensors and name OUT",
      setting, folder.string(), folder.string(), folder.string());
}

// "; did you mean models/llama?": who names the folder around that of a model.
std::string models_inside(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (fs::exists(it->path() / "config.json", error)) found.push_back(it->path().string());
  }
  if (found.empty()) return "";
  return "; did you mean " + *std::ranges::min_element(found) + "?";
}

}  // namespace

void require_base_folder(const fs::path& path) {
  constexpr const char* kSetting = "model_name_or_path";
  if (!fs::is_directory(path)) {
    if (path.extension() == ".json") return;
    throw ConfigError("{}: found the file {}, expected the folder that holds it; name {}", kSetting,
                      path.string(), path.has_parent_path() ? path.parent_path().string() : ".");
  }
  refuse_shards(kSetting, path);
  if (fs::exists(path / "config.json")) return;
  if (!fs::exists(path / hf::kAdapterConfigFile)) {
    throw ConfigError(
        "{}: found no config.json in {}, expected the folder of a checkpoint; check the path{}",
        kSetting, path.string(), models_inside(path));
  }
  const std::string base = hf::read_adapter_config(path).base_model_name_or_path;
  throw ConfigError(
      "{}: found an adapter in {}, expected its base model; to continue training it pass "
      "--model_name_or_path {} --adapter_name_or_path {}",
      kSetting, path.string(), base.empty() ? "BASE" : base, path.string());
}

void require_adapter_folder(const fs::path& path) {
  constexpr const char* kSetting = "adapter_name_or_path";
  refuse_shards(kSetting, path);
  if (fs::exists(path / hf::kAdapterConfigFile) || !fs::exists(path / "config.json")) return;
  throw ConfigError(
      "{}: found a model in {}, expected an adapter with its {}; name the model in "
      "model_name_or_path",
      kSetting, path.string(), hf::kAdapterConfigFile);
}

void require_one_state(const std::string& model, const std::string& revision) {
  if (revision == hf::HubPlace{}.revision || (!model.empty() && !fs::exists(model))) return;
  throw ConfigError(
      "model_revision: found {} for {}, expected the name of a model on the Hub; remove it",
      revision, model.empty() ? "a model from scratch" : "the folder " + model);
}

}  // namespace strata::train
