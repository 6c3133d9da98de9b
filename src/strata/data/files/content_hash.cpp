#include "strata/data/files/content_hash.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"
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
  return Json{{"path", path.string()},
              {"device", static_cast<uint64_t>(status.st_dev)},
              {"inode", static_cast<uint64_t>(status.st_ino)},
              {"size", static_cast<uint64_t>(status.st_size)},
              {"modified", nanoseconds(status.st_mtim)},
              {"changed", nanoseconds(status.st_ctim)}};
}

// Long enough ago for a later change to have another time.
bool is_settled(const Json& seen) {
  constexpr int64_t kSettled = 3'000'000'000;
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  return now - seen.at("changed").get<int64_t>() > kSettled &&
         now - seen.at("modified").get<int64_t>() > kSettled;
}

std::optional<std::string> recall(const fs::path& note, const Json& seen) {
  try {
    if (!fs::exists(note)) return std::nullopt;
    const Json known = read_json_file(note);
    if (known.at("file") != seen) return std::nullopt;
    std::error_code ignored;
    fs::last_write_time(note, fs::file_time_type::clock::now(), ignored);  // used today
    return known.at("hash").get<std::string>();
  } catch (const Error&) {
  } catch (const nlohmann::json::exception&) {
  }
  return std::nullopt;
}

}  // namespace

std::string content_hash(const fs::path& path, const HashMemory& memory) {
  std::error_code ignored;
  const fs::path whole = fs::canonical(path, ignored);
  const auto seen = memory.folder.empty() || ignored ? std::nullopt : look_at(whole);
  if (!seen || seen->at("size").get<uint64_t>() < memory.smallest) return hash_content(path);
  Xxh3 name;
  name.update(whole.string());
  const fs::path note = memory.folder / (name.text_128() + ".hash");
  if (auto known = recall(note, *seen)) return *known;
  const std::string hash = hash_content(path);
  if (look_at(whole) == seen && is_settled(*seen)) {
    try {
      fs::create_directories(memory.folder, ignored);
      write_file_atomically(note, Json{{"file", *seen}, {"hash", hash}}.dump());
    } catch (const IoError&) {
    }
  }
  return hash;
}

}  // namespace strata::data
