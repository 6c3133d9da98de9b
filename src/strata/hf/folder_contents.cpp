#include "strata/hf/folder_contents.h"

#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/export_index.h"

namespace strata::hf {

namespace fs = std::filesystem;

bool is_adapter_folder(const fs::path& folder) {
  if (!fs::exists(folder / kAdapterConfigFile)) return false;
  if (!fs::exists(folder / "config.json")) return true;
  const bool is_model =
      fs::exists(folder / kModelWeightsFile) || fs::exists(folder / kModelIndexFile);
  return !is_model &&
         (fs::exists(folder / kAdapterWeightsFile) || fs::exists(folder / "adapter_model.bin"));
}

std::map<std::string, std::string> read_weight_map(const fs::path& index) {
  const Json json = read_json_file(index);
  const auto found = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || found == json.end() || !found->is_object() || found->empty()) {
    throw FormatError(
        "{}: found no weight_map, expected an object of tensor and file names; fetch the "
        "file again",
        index.string());
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, file] : found->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
      throw FormatError(
          "{}: tensor {}: found the file {}, expected the name of a file next to the index; "
          "correct the index",
          index.string(), quote_json(tensor), dump_python(file, -1));
    }
    weight_map.emplace(tensor, name);
  }
  return weight_map;
}

std::set<std::string> indexed_files(const fs::path& index,
                                    const std::map<std::string, std::string>& weight_map) {
  std::set<std::string> files;
  for (const auto& [tensor, file] : weight_map) {
    if (!files.insert(file).second) continue;
    if (!fs::exists(index.parent_path() / file)) {
      throw IoError("{}: found no file {}, expected it for tensor {}; fetch the missing file",
                    index.string(), file, quote_json(tensor));
    }
  }
  return files;
}

}  // namespace strata::hf
