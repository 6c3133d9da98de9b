#include "strata/adapters/module_match.h"

#include <algorithm>
#include <set>

namespace strata::adapters {
namespace {

// "c", "b.c", "a.b.c" for "a.b.c".
std::vector<std::string> suffixes_of(const std::string& path) {
  std::vector<std::string> suffixes;
  for (size_t dot = path.rfind('.'); dot != std::string::npos && dot > 0;
       dot = path.rfind('.', dot - 1)) {
    suffixes.push_back(path.substr(dot + 1));
  }
  suffixes.push_back(path);
  return suffixes;
}

}  // namespace

bool matches_list(const std::string& path, const std::vector<std::string>& entries) {
  return std::any_of(entries.begin(), entries.end(), [&](const std::string& entry) {
    return path == entry || path.ends_with("." + entry);
  });
}

bool NameList::matches(const std::string& path) const {
  return std::ranges::any_of(suffixes_of(path),
                             [&](const std::string& suffix) { return entries_.contains(suffix); });
}

bool is_inside(const std::string& path, const std::vector<std::string>& entries) {
  const std::string fenced = "." + path + ".";
  return std::any_of(entries.begin(), entries.end(), [&](const std::string& entry) {
    return fenced.find("." + entry + ".") != std::string::npos;
  });
}

bool merely_ends_alike(const std::string& path, const std::vector<std::string>& entries) {
  const auto is_end = [&](const std::string& entry) { return path.ends_with(entry); };
  return !is_inside(path, entries) && std::ranges::any_of(entries, is_end);
}

std::vector<std::string> module_paths(const std::vector<std::string>& weight_names) {
  std::vector<std::string> paths;
  std::set<std::string> seen;
  for (const std::string& name : weight_names) {
    const size_t own = name.rfind('.');
    for (size_t dot = name.find('.'); dot != std::string::npos && dot <= own;
         dot = name.find('.', dot + 1)) {
      std::string path = name.substr(0, dot);
      if (seen.insert(path).second) paths.push_back(std::move(path));
    }
  }
  return paths;
}

std::vector<std::string> minimal_suffixes(std::vector<std::string> targets,
                                          const std::vector<std::string>& others) {
  std::set<std::string> other_suffixes;
  for (const std::string& other : others) {
    for (std::string& suffix : suffixes_of(other)) other_suffixes.insert(std::move(suffix));
  }
  std::sort(targets.begin(), targets.end(), [](const std::string& a, const std::string& b) {
    return suffixes_of(a) < suffixes_of(b);
  });
  std::set<std::string> chosen;
  for (const std::string& target : targets) {
    for (const std::string& suffix : suffixes_of(target)) {
      if (chosen.contains(suffix) || other_suffixes.contains(suffix)) continue;
      const bool covered = std::any_of(chosen.begin(), chosen.end(), [&](const std::string& c) {
        return target.ends_with("." + c);
      });
      if (covered) continue;
      chosen.insert(suffix);
      break;
    }
  }
  if (chosen.empty()) return targets;
  return {chosen.begin(), chosen.end()};
}

}  // namespace strata::adapters
