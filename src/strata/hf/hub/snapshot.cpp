#include "strata/hf/hub/snapshot.h"

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/export_index.h"

namespace strata::hf {
namespace {

namespace fs = std::filesystem;

// huggingface_hub's listing: {"format_version": 1, "files": {name: {...}}}.
std::optional<std::vector<std::string>> read_tree(const fs::path& path) {
  const Json tree = read_json_file(path);
  if (!tree.is_object() || tree.value("format_version", Json()) != 1 || !tree.contains("files") ||
      !tree["files"].is_object()) {
    return std::nullopt;
  }
  std::vector<std::string> names;
  for (const auto& [name, entry] : tree["files"].items()) names.push_back(name);
  return names;
}

std::vector<std::string> read_names(const fs::path& path) {
  std::vector<std::string> names;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) names.push_back(line);
  return names;
}

fs::path own_listing(const HubRequest& request, const std::string& commit) {
  return repository_folder(request) / ".strata" / commit;
}

std::optional<std::vector<std::string>> read_listing(const HubRequest& request,
                                                     const std::string& commit) {
  const fs::path tree = repository_folder(request) / "trees" / (commit + ".json");
  const fs::path own = own_listing(request, commit);
  try {
    if (fs::is_regular_file(own)) return read_names(own);
    if (fs::is_regular_file(tree)) return read_tree(tree);
  } catch (const Error&) {  // of a program that died while it wrote, or of a newer one
  }
  return std::nullopt;
}

}  // namespace

SnapshotState inspect_snapshot(const HubRequest& request, const WantsFile& wants,
                               const LacksFiles& lacks) {
  SnapshotState state{.folder = find_snapshot(request), .is_listed = false, .missing = {}};
  const auto listing = read_listing(request, state.folder.filename().string());
  state.is_listed = listing.has_value();
  if (listing) {
    for (const std::string& name : *listing) {
      // A link whose blob was removed does not exist either.
      if ((!wants || wants(name)) && !fs::exists(state.folder / name)) {
        state.missing.push_back(name);
      }
    }
  } else if (lacks) {
    state.missing = lacks(state.folder);
  }
  std::ranges::sort(state.missing);
  return state;
}

void remember_listing(const HubRequest& request, const std::string& commit,
                      const std::vector<std::string>& names) {
  const fs::path path = own_listing(request, commit);
  std::string text;
  for (const std::string& name : names) {
    if (name.find('\n') != std::string::npos) return;
    text += name + "\n";
  }
  try {
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    write_file_atomically(path, text);
  } catch (const IoError&) {
  }
}

std::vector<std::string> lacking_model_files(const fs::path& folder) {
  const bool has_config = fs::exists(folder / "config.json");
  if (!has_config && fs::exists(folder / kAdapterConfigFile)) return {};
  std::vector<std::string> missing;
  if (!has_config) missing.emplace_back("config.json");
  const fs::path index = folder / kModelIndexFile;
  if (fs::exists(folder / kModelWeightsFile)) return missing;
  if (!fs::exists(index)) {
    missing.emplace_back(kModelWeightsFile);
    return missing;
  }
  try {
    const Json json = read_json_file(index);
    std::set<std::string> shards;
    for (const auto& [tensor, file] : json.at("weight_map").items()) {
      const std::string name = file.get<std::string>();
      if (!fs::exists(folder / name) && shards.insert(name).second) missing.push_back(name);
    }
  } catch (const std::exception&) {  // the reader of the folder says what is wrong with it
  }
  return missing;
}

std::vector<std::string> lacking_tokenizer_files(const fs::path& folder) {
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model",
        "sentencepiece.model", "tiktoken.model", "vocab.tiktoken", "tekken.json", "vocab.json",
        "vocab.txt"}) {
    if (fs::exists(folder / name)) return {};
  }
  return {"tokenizer.json"};
}

}  // namespace strata::hf
