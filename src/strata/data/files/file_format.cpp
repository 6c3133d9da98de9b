#include "strata/data/files/file_format.h"

#include <algorithm>
#include <cctype>
#include <set>

namespace strata::data {

namespace {

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

FileFormat file_format(const std::filesystem::path& path) {
  static const std::set<std::string> kText = {".jsonl", ".json", ".csv", ".tsv", ".txt"};
  // The same under two names.
  const auto known = [](const std::filesystem::path& ending) {
    const std::string text = lower(ending.string());
    return text == ".ndjson" ? ".jsonl" : text;
  };
  const std::string extension = known(path.extension());
  if (extension == ".parquet" || extension == ".arrow" || kText.contains(extension)) {
    // Notes beside the data, which save_to_disk and the Hub write.
    static const std::set<std::string> kNotes = {"config.json", "dataset_info.json",
                                                 "dataset_infos.json", "dataset_dict.json",
                                                 "state.json"};
    if (kNotes.contains(path.filename().string())) return {};
    return {.extension = extension};
  }
  const std::string inner = known(path.stem().extension());
  if ((extension == ".gz" || extension == ".zst") && kText.contains(inner)) {
    return {.extension = inner, .is_compressed = true};
  }
  return {};
}

}  // namespace strata::data
