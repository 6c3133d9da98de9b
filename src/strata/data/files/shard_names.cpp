#include "strata/data/files/shard_names.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "strata/base/error.h"

namespace strata::data {
namespace {

namespace fs = std::filesystem;

// Whether the text has a digit for every '0' of the pattern, a hexadecimal one for every 'x', and
// its other characters.
bool fits(std::string_view text, std::string_view pattern) {
  const auto fits_one = [](char c, char p) {
    const auto byte = static_cast<unsigned char>(c);
    return p == '0' ? std::isdigit(byte) != 0 : p == 'x' ? std::isxdigit(byte) != 0 : c == p;
  };
  return std::ranges::equal(text, pattern, fits_one);
}

}  // namespace

std::optional<ShardName> parse_shard(const std::string& stem) {
  constexpr std::string_view kNumbers = "-00000-of-00000", kHash = "-xxxxxxxxxxxxxxxx";
  std::string_view name = stem;
  if (name.size() > kHash.size() && fits(name.substr(name.size() - kHash.size()), kHash)) {
    name.remove_suffix(kHash.size());
  }
  if (name.size() <= kNumbers.size()) return std::nullopt;
  const std::string numbers(name.substr(name.size() - kNumbers.size()));
  if (!fits(numbers, kNumbers)) return std::nullopt;
  name.remove_suffix(kNumbers.size());
  return ShardName{.split = std::string(name),
                   .index = std::stoi(numbers.substr(1, 5)),
                   .count = std::stoi(numbers.substr(10))};
}

std::string stem_of(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.substr(0, name.find('.', 1));
}

void require_all_shards(const std::vector<fs::path>& files) {
  std::map<std::tuple<fs::path, std::string, int>, std::set<int>> found;
  for (const fs::path& file : files) {
    const auto shard = parse_shard(stem_of(file));
    if (shard) found[{file.parent_path(), shard->split, shard->count}].insert(shard->index);
  }
  for (const auto& [set, indices] : found) {
    const auto& [folder, split, count] = set;
    if (static_cast<int>(indices.size()) == count) continue;
    throw ConfigError(
        "{}: found {} of the {} files of split {} ({}-00000-of-{:05} and so on), expected all; "
        "complete the download",
        folder.string(), indices.size(), count, split, split, count);
  }
}

}  // namespace strata::data
