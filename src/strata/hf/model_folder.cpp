#include "strata/hf/model_folder.h"

#include <algorithm>
#include <map>
#include <set>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/folder_update.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/export_index.h"
#include "strata/hf/folder_contents.h"
#include "strata/hf/weight_names.h"

namespace strata::hf {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_no_weights(const fs::path& folder) {
  for (const char* other : {"pytorch_model.bin", kTorchIndexFile, "adapter_model.bin"}) {
    if (!fs::exists(folder / other)) continue;
    throw IoError(
        "{}: found {}, expected safetensors files; run strata convert {} OUT --to safetensors and "
        "name OUT",
        folder.string(), other, folder.string());
  }
  std::set<std::string> shards;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") shards.insert(entry.path().filename());
  }
  if (!shards.empty()) {
    throw IoError("{}: found {} without {}, expected both; fetch the missing file", folder.string(),
                  *shards.begin(), kModelIndexFile);
  }
  throw IoError(
      "{}: found neither {} nor {}, expected one of them next to config.json; check the path",
      folder.string(), kModelWeightsFile, kModelIndexFile);
}

// By a key of config.json transformers reads other files than these names.
void check_named_weights(const fs::path& config_file, const std::string& read, Json& config) {
  constexpr const char* kKey = "transformers_weights";
  const auto named = config.find(kKey);
  if (named == config.end()) return;
  if (!named->is_null() && *named != read) {
    throw FormatError(
        "{}: found {} = {}, expected {}, the weights that are read here; remove the key, or give "
        "the file that it names this name",
        config_file.string(), kKey, dump_python(*named, /*indent=*/-1), read);
  }
  config.erase(kKey);  // what is written may have other files
}

}  // namespace

ModelFolder::ModelFolder(const fs::path& path) : path_(path) {
  if (!fs::is_directory(path)) {
    throw IoError("{}: found {}, expected a folder with config.json; check the path", path.string(),
                  fs::exists(path) ? "a file" : "nothing");
  }
  require_whole_folder(path);
  is_adapter_ = is_adapter_folder(path);
  const fs::path config = path / (is_adapter_ ? kAdapterConfigFile : "config.json");
  config_ = read_json_file(config);
  if (!config_.is_object()) {
    throw FormatError("{}: found {}, expected a json object; correct the file", config.string(),
                      config_.type_name());
  }
  const bool is_single = fs::exists(path / kModelWeightsFile);
  if (!is_adapter_) {
    check_named_weights(config, is_single ? kModelWeightsFile : kModelIndexFile, config_);
  }
  const fs::path single = path / (is_adapter_ ? kAdapterWeightsFile : kModelWeightsFile);
  if (fs::exists(single)) {
    add_file(single);
  } else if (!is_adapter_ && fs::exists(path / kModelIndexFile)) {
    open_indexed(path / kModelIndexFile);
  } else if (is_adapter_ && !fs::exists(path / "adapter_model.bin")) {
    throw IoError("{}: found no {}, expected it next to {}; check the path", path.string(),
                  kAdapterWeightsFile, kAdapterConfigFile);
  } else {
    throw_no_weights(path);
  }
}

void ModelFolder::open_indexed(const fs::path& index) {
  const std::map<std::string, std::string> weight_map = read_weight_map(index);
  for (const std::string& file : indexed_files(index, weight_map)) add_file(path_ / file);
  for (const auto& [tensor, file] : weight_map) {
    const TensorInfo* info = find(name_in_model(config_, tensor));
    if (info == nullptr || file_of(*info).path().filename() != file) {
      throw FormatError(
          "{}: found tensor {} {}, expected it in {}; index and files are not from one "
          "save, fetch them again",
          index.string(), quote_json(tensor),
          info == nullptr ? "in no file" : "in " + file_of(*info).path().filename().string(), file);
    }
  }
}

void ModelFolder::add_file(const fs::path& file) {
  // Moving a file keeps its tensors' addresses: the map below points at them.
  files_.emplace_back(file);
  if (!is_adapter_) {
    files_.back().rename([&](const std::string& name) { return name_in_model(config_, name); });
  }
  for (const TensorInfo& info : files_.back().tensors()) {
    const auto [place, is_new] = places_.emplace(info.name, Place{files_.size() - 1, &info});
    if (is_new) continue;
    throw FormatError(
        "{}: found tensor {}, which is also in {}, expected it in one file; fetch the "
        "files again",
        file.string(), quote_json(info.name),
        files_[place->second.file].path().filename().string());
  }
}

const TensorInfo* ModelFolder::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.tensor;
}

const SafetensorsFile& ModelFolder::file_of(const TensorInfo& info) const {
  const auto found = places_.find(info.name);
  if (found == places_.end() || found->second.tensor != &info) {
    throw InternalError("{}: found tensor \"{}\" of elsewhere, expected one of this folder",
                        path_.string(), info.name);
  }
  return files_[found->second.file];
}

std::span<const std::byte> ModelFolder::bytes(const TensorInfo& info) const {
  return file_of(info).bytes(info);
}

std::vector<std::string> ModelFolder::names() const {
  std::vector<std::string> names;
  names.reserve(places_.size());
  for (const auto& [name, place] : places_) names.emplace_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace strata::hf
