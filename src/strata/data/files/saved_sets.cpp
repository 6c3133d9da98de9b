#include "strata/data/files/saved_sets.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/base/json.h"

namespace strata::data {

namespace fs = std::filesystem;

bool is_saved_dataset(const fs::path& folder) {
  return fs::exists(folder / "state.json") && fs::exists(folder / "dataset_info.json");
}

std::vector<std::string> saved_splits(const fs::path& folder) {
  const fs::path list = folder / "dataset_dict.json";
  if (!fs::exists(list)) return {};
  const Json json = read_json_file(list);
  std::vector<std::string> names;
  if (json.is_object() && json.contains("splits") && json["splits"].is_array()) {
    for (const Json& name : json["splits"]) {
      if (name.is_string()) names.push_back(name.get<std::string>());
    }
  }
  if (names.empty()) {
    throw FormatError("{}: found no list of \"splits\", expected their names", list.string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<fs::path> saved_files(const fs::path& folder) {
  const fs::path path = folder / "state.json";
  const Json state = read_json_file(path);
  std::vector<fs::path> files;
  if (state.is_object() && state.contains("_data_files") && state["_data_files"].is_array()) {
    for (const Json& file : state["_data_files"]) {
      if (file.is_object() && file.contains("filename") && file["filename"].is_string()) {
        files.push_back(folder / file["filename"].get<std::string>());
      }
    }
  }
  if (files.empty()) {
    throw FormatError("{}: found no \"_data_files\", expected the files' names", path.string());
  }
  return files;
}

}  // namespace strata::data
