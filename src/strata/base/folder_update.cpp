#include "strata/base/folder_update.h"

#include <unistd.h>

#include <set>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemporaryPrefix = ".update.tmp-";
constexpr const char* kReady = ".update.ready";
constexpr const char* kRecord = "update.json";

// Files below the folder but the record, as names relative to it.
std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const fs::path name = entry.path().lexically_relative(folder);
    if (!entry.is_directory() && name != kRecord) found.push_back(name);
  }
  return found;
}

struct Record {
  std::string entry;
  std::vector<std::string> removed;
};

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

// A name in a folder below.
bool is_name_below(const std::string& name) {
  const size_t slash = name.find('/');
  return slash != std::string::npos && is_plain_name(name.substr(0, slash)) &&
         is_plain_name(name.substr(slash + 1));
}

// Names of files in the folder and those in it, and nothing else: the record may be anybody's.
Record read_record(const fs::path& path) {
  Record record;
  const Json json = read_json_file(path);
  try {
    record.entry = json.at("entry").get<std::string>();
    record.removed = json.at("removed").get<std::vector<std::string>>();
  } catch (const Json::exception& error) {
    throw FormatError(
        "{}: found a record that cannot be read ({}), expected entry and removed; "
        "remove its folder",
        path.string(), error.what());
  }
  const auto require = [&](bool is_name, const std::string& name) {
    if (is_name) return;
    throw FormatError("{}: found the name \"{}\", expected a file of the folder; remove it",
                      path.string(), name);
  };
  require(record.entry.empty() || is_plain_name(record.entry), record.entry);
  for (const std::string& name : record.removed) {
    require(is_plain_name(name) || is_name_below(name), name);
  }
  return record;
}

// The renames after a commit. Every step may have been done before, by whoever was cut short.
class Publication {
 public:
  Publication(const fs::path& folder, FileSystem& files)
      : folder_(folder), ready_(folder / kReady), files_(files) {}

  void carry_on() {
    const auto [entry, removed] = read_record(ready_ / kRecord);
    const bool has_entry = !entry.empty() && fs::exists(ready_ / entry);
    if (has_entry && fs::exists(folder_ / entry)) {
      require(files_.remove(folder_ / entry), entry);
      sync(folder_);  // before any file that it does not belong to is there
    }
    std::set<fs::path> changed{folder_};
    for (const fs::path& name : files_below(ready_)) {
      if (name == entry) continue;
      const fs::path target = folder_ / name;
      if (name.has_parent_path()) {
        require(files_.make_folder(target.parent_path()), name);
        changed.insert(target.parent_path());
      }
      require(files_.rename(ready_ / name, target), name);
    }
    // After the entry nothing is left to do; what has such a name now is another file.
    for (const std::string& name : removed) {
      if (!has_entry && !entry.empty()) continue;
      require_own_place(name);
      require(files_.remove(folder_ / name), name);
      const fs::path parent = (folder_ / name).parent_path();
      if (fs::is_directory(parent)) changed.insert(parent);
    }
    for (const fs::path& path : changed) sync(path);
    if (has_entry) {
      require(files_.rename(ready_ / entry, folder_ / entry), entry);
      sync(folder_);
    }
    require(files_.remove(ready_), kReady);
  }

 private:
  // A link below may lead to other people's files.
  void require_own_place(const fs::path& name) const {
    if (!name.has_parent_path()) return;
    const fs::path below = folder_ / name.parent_path();
    const fs::file_status status = fs::symlink_status(below);
    if (!fs::exists(status) || fs::is_directory(status)) return;
    throw FormatError(
        "{}: found no folder of its own, expected one to remove \"{}\" from; remove {}",
        below.string(), name.filename().string(), ready_.string());
  }
  void sync(const fs::path& path) { fsync_path(path, files_); }

  void require(int error_number, const fs::path& name) {
    if (error_number == 0) return;
    throw IoError(
        "{}: found {}, expected it to be replaced; what is not in its place yet is complete in {}: "
        "look at space and permissions there, then run again",
        (folder_ / name).string(), errno_text(error_number), ready_.string());
  }

  fs::path folder_;
  fs::path ready_;
  FileSystem& files_;
};

}  // namespace

FolderUpdate::FolderUpdate(fs::path folder, FileSystem& files)
    : folder_(std::move(folder)),
      temporary_(folder_ / (kTemporaryPrefix + std::to_string(::getpid()))),
      files_(files) {
  if (fs::is_directory(folder_)) finish_folder_update(folder_, files_);
  int error = make_durable_folders(folder_, files_);
  if (error == 0) error = files_.make_folder(temporary_);
  if (error != 0) {
    throw IoError("{}: found {}, expected a writable folder; check its permissions and free space",
                  folder_.string(), errno_text(error));
  }
}

FolderUpdate::~FolderUpdate() {
  if (!is_committed_) files_.remove(temporary_);
}

void FolderUpdate::write(const fs::path& name, std::string_view content) {
  const fs::path target = temporary_ / name;
  if (name.has_parent_path()) {
    if (const int error = files_.make_folder(target.parent_path())) {
      throw IoError("{}: found {}, expected to create this folder; check free space",
                    target.parent_path().string(), errno_text(error));
    }
  }
  write_file_atomically(target, content, files_);
}

void FolderUpdate::commit(const std::string& entry, const std::vector<std::string>& removed) {
  write(kRecord, Json{{"entry", entry}, {"removed", removed}}.dump());
  for (const auto& found : fs::recursive_directory_iterator(temporary_)) {
    if (found.is_directory()) fsync_path(found.path(), files_);
  }
  fsync_path(temporary_, files_);
  if (const int error = files_.rename(temporary_, folder_ / kReady)) {
    throw IoError("{}: found {} when renaming {} to it, expected it to go; check the folder",
                  (folder_ / kReady).string(), errno_text(error), temporary_.filename().string());
  }
  is_committed_ = true;
  fsync_path(folder_, files_);
  Publication(folder_, files_).carry_on();
}

void finish_folder_update(const fs::path& folder, FileSystem& files) {
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(kTemporaryPrefix)) {
      left.push_back(entry.path());
    }
  }
  const fs::path ready = folder / kReady;
  if (fs::exists(ready / kRecord)) {
    Publication(folder, files).carry_on();
  } else if (fs::is_directory(ready) && files_below(ready).empty()) {
    left.push_back(ready);  // only its own removal was cut short
  }
  for (const fs::path& path : left) files.remove(path);
}

bool has_unfinished_update(const fs::path& folder) {
  std::error_code error;
  return !folder.empty() && fs::exists(folder / kReady / kRecord, error);
}

void require_whole_folder(const fs::path& folder) {
  if (!has_unfinished_update(folder)) return;
  throw IoError(
      "{}: found a result that was being put into place when the run crashed (the rest is in {}), "
      "expected all files of one result; strata inspect {} --repair puts the rest in place, and so "
      "does the next run into that folder",
      folder.string(), kReady, folder.string());
}

}  // namespace strata
