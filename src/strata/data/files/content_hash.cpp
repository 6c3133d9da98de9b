#include "strata/data/files/content_hash.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"
#include "strata/base/visible_text.h"
#include "strata/base/xxh3.h"

namespace strata::data {
namespace {

namespace fs = std::filesystem;

// In steps, whose pages do not stay in memory.
std::string hash_content(const fs::path& path) {
  Xxh3 hash;
  const MappedFile file(path);
  constexpr size_t kStep = size_t{1} << 24;
  for (auto rest = file.data(); !rest.empty(); rest = rest.subspan(std::min(kStep, rest.size()))) {
    const auto step = rest.first(std::min(kStep, rest.size()));
    hash.update(step);
    if (file.data().size() > kStep) forget_pages(step);
  }
  return hash.text_128();
}

int64_t nanoseconds(const timespec& time) {
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// What changes with the content, as far as the file system knows; empty where it does not say.
std::optional<Json> look_at(const fs::path& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return Json{{"path", visible(path.string())},  // JSON takes no name that is not UTF-8
              {"device", static_cast<uint64_t>(status.st_dev)},
              {"inode", static_cast<uint64_t>(status.st_ino)},
              {"size", static_cast<uint64_t>(status.st_size)},
              {"modified", nanoseconds(status.st_mtim)},
              {"changed", nanoseconds(status.st_ctim)}};
}

struct SeenFile {
  fs::path path;
  Json facts;  // look_at()
};

// Long enough ago for a later change to have another time.
bool is_settled(const Json& seen) {
  constexpr int64_t kSettled = 3'000'000'000;
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  return now - seen.at("changed").get<int64_t>() > kSettled &&
         now - seen.at("modified").get<int64_t>() > kSettled;
}

// Machines that share the memory may know one file by different devices: each has notes of its own.
fs::path note_of(std::span<const SeenFile> seen, const HashMemory& memory) {
  Xxh3 name;
  for (const SeenFile& file : seen) {
    name.update(file.path.string());
    const uint64_t device = file.facts.at("device").get<uint64_t>();
    name.update(std::as_bytes(std::span(&device, 1)));
  }
  return memory.folder / (name.text_128() + ".hash");
}

// What a note says of files, by their paths: how they were seen, and their hashes.
using Known = std::map<std::string, std::pair<Json, std::string>>;

Known recall(const fs::path& note) {
  Known known;
  try {
    if (!fs::exists(note)) return known;
    const Json content = read_json_file(note);
    for (const Json& entry : content.at("files")) {
      const Json& file = entry.at("file");
      known[file.at("path").get<std::string>()] = {file, entry.at("hash").get<std::string>()};
    }
    std::error_code ignored;
    fs::last_write_time(note, fs::file_time_type::clock::now(), ignored);  // used today
  } catch (const Error&) {
  } catch (const nlohmann::json::exception&) {
  }
  return known;
}

void remember(const fs::path& note, const Known& known) {
  Json files = Json::array();
  for (const auto& [path, file] : known)
    files.push_back({{"file", file.first}, {"hash", file.second}});
  std::error_code ignored;
  try {
    fs::create_directories(note.parent_path(), ignored);
    write_file_atomically(note, Json{{"files", std::move(files)}}.dump());
  } catch (const IoError&) {
  }
}

// The hashes of files, which one note remembers.
std::vector<std::string> hashes_with_note(std::span<const SeenFile> seen,
                                          const HashMemory& memory) {
  const fs::path note = note_of(seen, memory);
  Known known = recall(note);
  bool is_new = false;
  std::vector<std::string> hashes;
  for (const auto& [path, facts] : seen) {
    const std::string& name = facts.at("path").get_ref<const std::string&>();
    const auto before = known.find(name);
    if (before != known.end() && before->second.first == facts) {
      hashes.push_back(before->second.second);
      continue;
    }
    hashes.push_back(hash_content(path));
    if (look_at(path) != facts || !is_settled(facts)) continue;
    known[name] = {facts, hashes.back()};
    is_new = true;
  }
  if (is_new) remember(note, known);
  return hashes;
}

uint64_t size_of(const SeenFile& seen) { return seen.facts.at("size").get<uint64_t>(); }

// Nothing where there is no memory, or the file system says nothing.
std::optional<SeenFile> look_for_memory(const fs::path& path, const HashMemory& memory) {
  if (memory.folder.empty()) return std::nullopt;
  std::error_code error;
  fs::path whole = fs::canonical(path, error);
  if (error) return std::nullopt;
  std::optional<Json> facts = look_at(whole);
  if (!facts) return std::nullopt;
  return SeenFile{std::move(whole), std::move(*facts)};
}

}  // namespace

std::string content_hash(const fs::path& path, const HashMemory& memory) {
  const std::optional<SeenFile> seen = look_for_memory(path, memory);
  if (!seen || size_of(*seen) < memory.smallest) return hash_content(path);
  return hashes_with_note({&*seen, 1}, memory).front();
}

std::vector<std::string> content_hashes(std::span<const fs::path> paths, const HashMemory& memory) {
  std::vector<std::string> hashes(paths.size());
  std::vector<SeenFile> small;
  std::vector<size_t> places;  // of the small ones
  uint64_t bytes = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    std::optional<SeenFile> seen = look_for_memory(paths[i], memory);
    if (!seen || size_of(*seen) >= memory.smallest) {
      hashes[i] = content_hash(paths[i], memory);
      continue;
    }
    bytes += size_of(*seen);
    small.push_back(std::move(*seen));
    places.push_back(i);
  }
  if (bytes < memory.smallest) {
    for (const size_t i : places) hashes[i] = hash_content(paths[i]);
    return hashes;
  }
  std::vector<std::string> of_small = hashes_with_note(small, memory);
  for (size_t i = 0; i < places.size(); ++i) hashes[places[i]] = std::move(of_small[i]);
  return hashes;
}

}  // namespace strata::data
