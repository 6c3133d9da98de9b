#include "strata/data/files/file_kinds.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace strata::data {
namespace {

namespace fs = std::filesystem;

enum class Kind { kJson, kTable, kText, kParquet, kArrow };

const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> kKinds = {
      {".jsonl", Kind::kJson},      {".json", Kind::kJson},  {".ndjson", Kind::kJson},
      {".csv", Kind::kTable},       {".tsv", Kind::kTable},  {".txt", Kind::kText},
      {".parquet", Kind::kParquet}, {".arrow", Kind::kArrow}};
  return kKinds;
}

// What goes before others where there are as many, the first of them most of all; all others are
// taken in the order of letters from the end.
int preference(const std::string& ending) {
  constexpr std::array<std::string_view, 5> kFirst = {".parquet", ".arrow", ".jsonl", ".json",
                                                      ".csv"};
  return static_cast<int>(kFirst.end() - std::ranges::find(kFirst, ending));
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// The ending that says the kind, which that of a packed file is not.
std::string ending_of(const fs::path& file) {
  const std::string ending = lower(file.extension().string());
  return kinds().contains(ending) ? ending : lower(file.stem().extension().string());
}

// Tables about the files of a folder of pictures.
bool is_metadata(const std::string& name) {
  static const std::set<std::string> kNames = {"metadata.csv", "metadata.jsonl",
                                               "metadata.parquet"};
  return kNames.contains(name);
}

Kind most_common(const std::vector<fs::path>& files) {
  std::map<std::pair<bool, std::string>, int64_t> counts;  // with: whether they are data
  for (const fs::path& file : files) {
    ++counts[{!is_metadata(file.filename().string()), ending_of(file)}];
  }
  const auto rank = [](const auto& entry) {
    const auto& [is_data, ending] = entry.first;
    return std::tuple(is_data, entry.second, preference(ending), ending);
  };
  return kinds().at(std::ranges::max_element(counts, {}, rank)->first.second);
}

}  // namespace

FilesOfKind choose_kind(std::vector<fs::path> files) {
  FilesOfKind result;
  if (files.empty()) return result;
  const Kind kind = most_common(files);
  for (fs::path& file : files) {
    const bool is_kept = kinds().at(ending_of(file)) == kind;
    (is_kept ? result.kept : result.left_out).push_back(std::move(file));
  }
  return result;
}

}  // namespace strata::data
