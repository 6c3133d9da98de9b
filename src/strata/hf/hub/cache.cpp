#include "strata/hf/hub/cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <vector>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/text_distance.h"

namespace strata::hf {
namespace {

namespace fs = std::filesystem;

// The variable's value with a leading ~ resolved; empty if it is not set.
fs::path path_from(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return {};
  const std::string text(value);
  const char* home = std::getenv("HOME");
  if (text.starts_with("~/") && home != nullptr) return fs::path(home) / text.substr(2);
  return text;
}

std::string read_reference(const fs::path& path) {
  std::string commit = read_file(path);
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) {
    commit.pop_back();
  }
  const bool is_name = !commit.empty() && commit.find('/') == std::string::npos && commit != "..";
  if (is_name) return commit;
  throw FormatError("{}: found \"{}\", expected the name of a commit", path.string(), commit);
}

}  // namespace

bool is_hub_name(const std::string& name) {
  if (name.empty() || name.find("..") != std::string::npos ||
      name.find("--") != std::string::npos) {
    return false;
  }
  if (std::count(name.begin(), name.end(), '/') > 1) return false;
  const auto fits = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' ||
           c == '/';
  };
  const char first = name.front(), last = name.back();
  return first != '/' && first != '.' && first != '-' && last != '/' && last != '.' &&
         std::ranges::all_of(name, fits);
}

bool is_hub_revision(const std::string& revision) {
  const auto fits = [](unsigned char c) { return std::isgraph(c) != 0 && c != '\\'; };
  return !revision.empty() && revision.front() != '/' && revision.back() != '/' &&
         revision.find("..") == std::string::npos && std::ranges::all_of(revision, fits);
}

fs::path hf_home() {
  if (fs::path home = path_from("HF_HOME"); !home.empty()) return home;
  if (fs::path cache = path_from("XDG_CACHE_HOME"); !cache.empty()) return cache / "huggingface";
  const char* home = std::getenv("HOME");
  return fs::path(home == nullptr ? "." : home) / ".cache" / "huggingface";
}

fs::path hub_cache_folder() {
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (fs::path cache = path_from(variable); !cache.empty()) return cache;
  }
  return hf_home() / "hub";
}

fs::path repository_folder(const HubRequest& request) {
  std::string name = request.kind == HubKind::kModel ? "models--" : "datasets--";
  for (const char c : request.name) name += c == '/' ? std::string("--") : std::string(1, c);
  return (request.cache.empty() ? hub_cache_folder() : request.cache) / name;
}

namespace {

fs::path snapshot_folder(const HubRequest& request) {
  const fs::path folder = repository_folder(request);
  const fs::path reference = folder / "refs" / request.revision;
  return folder / "snapshots" /
         (fs::is_regular_file(reference) ? read_reference(reference) : request.revision);
}

}  // namespace

namespace {

// Repositories of the cache with names near to the one that is not there, for a message.
std::string near_repositories(const HubRequest& request) {
  constexpr size_t kMost = 3;
  const fs::path missing = repository_folder(request);
  const std::string kind = request.kind == HubKind::kModel ? "models--" : "datasets--";
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(missing.parent_path(), error), end; !error && it != end;
       it.increment(error)) {
    const std::string folder = it->path().filename().string();
    if (!folder.starts_with(kind)) continue;
    const std::string flat = folder.substr(kind.size());
    const size_t at = flat.find("--");
    const std::string name =
        at == flat.npos ? flat : fmt::format("{}/{}", flat.substr(0, at), flat.substr(at + 2));
    if (name != request.name) names.push_back(name);
  }
  std::ranges::sort(names);
  const std::vector<std::string> near = closest_names(request.name, names, kMost);
  return near.empty() ? "" : fmt::format("; did you mean {}?", fmt::join(near, " or "));
}

}  // namespace

bool has_snapshot(const HubRequest& request) { return fs::is_directory(snapshot_folder(request)); }

fs::path find_snapshot(const HubRequest& request) {
  const fs::path snapshot = snapshot_folder(request);
  if (fs::is_directory(snapshot)) return snapshot;
  throw IoError(
      "{}: found no such path and no revision \"{}\" in the Hub cache ({}), expected one of them; "
      "give a folder, or download it into the cache{}",
      request.name, request.revision, repository_folder(request).string(),
      near_repositories(request));
}

}  // namespace strata::hf
