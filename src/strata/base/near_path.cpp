#include "strata/base/near_path.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "strata/base/text_distance.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMost = 3;
constexpr size_t kMostNames = 10000;  // a larger folder is not looked through to the end

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end;
       !error && it != end && names.size() < kMostNames; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// "train" of "train.jsonl.gz".
std::string_view stem_of(std::string_view name) { return name.substr(0, name.find('.', 1)); }

}  // namespace

std::vector<std::string> near_paths(const fs::path& missing) {
  std::error_code error;
  fs::path folder, rest;
  for (auto part = missing.begin(); part != missing.end(); ++part) {
    if (fs::exists(folder / *part, error)) {
      folder /= *part;
      continue;
    }
    for (auto behind = std::next(part); behind != missing.end(); ++behind) rest /= *behind;
    const std::string wanted = part->string();
    std::vector<std::string> names = names_in(folder.empty() ? fs::path(".") : folder);
    std::vector<std::string> near = closest_names(wanted, names, kMost);
    if (near.empty()) {  // the right name with another extension
      std::erase_if(names, [&](const std::string& n) { return stem_of(n) != stem_of(wanted); });
      names.resize(std::min(names.size(), kMost));
      near = std::move(names);
    }
    std::vector<std::string> paths;
    for (const std::string& name : near) {
      const fs::path whole = folder / name / rest;
      paths.push_back((!rest.empty() && fs::exists(whole, error) ? whole : folder / name).string());
    }
    return paths;
  }
  return {};
}

// The first part of the path that is a link to nothing; empty: none is.
static fs::path dangling_part(const fs::path& missing) {
  std::error_code error;
  fs::path part;
  for (const fs::path& name : missing) {
    part /= name;
    if (!fs::exists(part, error)) return fs::is_symlink(part, error) ? part : fs::path();
  }
  return {};
}

std::string did_you_mean(const fs::path& missing) {
  if (const fs::path link = dangling_part(missing); !link.empty()) {
    std::error_code error;
    return fmt::format("; {} is a link to {}, which is not there", link.string(),
                       fs::read_symlink(link, error).string());
  }
  const std::vector<std::string> paths = near_paths(missing);
  return paths.empty() ? "" : fmt::format("; did you mean {}?", fmt::join(paths, " or "));
}

}  // namespace strata
