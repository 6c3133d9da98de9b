// The writes of file.h that happen completely or not at all.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/write_advice.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

fs::path without_trailing_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

fs::path sibling(const fs::path& path, const char* kind) {
  fs::path result = path;
  result += fmt::format(".{}-{}", kind, ::getpid());
  return result;
}

// What has been replaced, under a name that nobody gives a folder of his own.
std::string replaced_prefix(const fs::path& target) {
  return fmt::format(".{}.replaced-", target.filename().string());
}

// Siblings PREFIX<number>, whichever process made them.
std::vector<fs::path> siblings(const fs::path& target, const std::string& prefix) {
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(parent_of(target), error)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > prefix.size() && name.starts_with(prefix) &&
        name.find_first_not_of("0123456789", prefix.size()) == std::string::npos) {
      found.push_back(entry.path());
    }
  }
  return found;
}

bool is_there(const fs::path& path) { return fs::exists(fs::symlink_status(path)); }

bool is_empty_folder(const fs::path& path) {
  return fs::is_directory(fs::symlink_status(path)) && fs::is_empty(path);
}

// Removes the path at the end of its scope unless released.
class RemoveGuard {
 public:
  RemoveGuard(fs::path path, FileSystem& files) : path_(std::move(path)), files_(files) {}
  ~RemoveGuard() {
    if (armed_) files_.remove(path_);
  }
  RemoveGuard(const RemoveGuard&) = delete;
  RemoveGuard& operator=(const RemoveGuard&) = delete;
  void release() { armed_ = false; }

 private:
  fs::path path_;
  FileSystem& files_;
  bool armed_ = true;
};

[[noreturn]] void throw_unwritten(const fs::path& path, int error_number, size_t written,
                                  size_t expected) {
  if (error_number == ENOENT && !is_there(parent_of(path))) {
    throw IoError("{}: found no folder {}, expected one; make it, or correct the path",
                  path.string(), parent_of(path).string());
  }
  throw IoError("{}: found {} after {} bytes written, expected {} bytes; {}, then run again",
                path.string(), errno_text(error_number), written, expected,
                write_advice(error_number, "check free space and permissions in that folder"));
}

[[noreturn]] void throw_unrenamed(const fs::path& from, const fs::path& to, int error_number) {
  throw IoError(
      "{}: found {} when renaming {} to it, expected it to be replaced; check the folder's "
      "permissions",
      to.string(), errno_text(error_number), from.filename().string());
}

// Puts `temporary` in the place of the existing `final_path` and returns where the old one went.
fs::path exchange_folders(const fs::path& temporary, const fs::path& final_path,
                          FileSystem& files) {
  if (files.exchange(temporary, final_path) == 0) return temporary;
  // File systems without an exchange: for a moment nothing has the final name, but both contents
  // are there; finish_replacement() mends what is cut short here.
  const fs::path old =
      parent_of(final_path) / fmt::format("{}{}", replaced_prefix(final_path), ::getpid());
  if (const int error = files.rename(final_path, old)) throw_unrenamed(final_path, old, error);
  if (const int error = files.rename(temporary, final_path)) {
    files.rename(old, final_path);
    throw_unrenamed(temporary, final_path, error);
  }
  return old;
}

}  // namespace

void write_file_atomically(const fs::path& path, std::string_view content, FileSystem& files) {
  const fs::path temporary = sibling(path, "tmp");
  const int descriptor = files.create(temporary);
  if (descriptor < 0) throw_unwritten(path, -descriptor, 0, content.size());
  const Descriptor file(descriptor);
  RemoveGuard guard(temporary, files);
  const size_t written = files.write(file.get(), std::as_bytes(std::span(content)), 0);
  if (written != content.size()) throw_unwritten(path, errno, written, content.size());
  if (const int error = files.sync(file.get())) {
    throw_unwritten(path, error, written, content.size());
  }
  if (const int error = files.rename(temporary, path)) throw_unrenamed(temporary, path, error);
  guard.release();
  fsync_path(parent_of(path), files);
}

AtomicFolder::AtomicFolder(fs::path final_path, FileSystem& files)
    : final_(without_trailing_slash(std::move(final_path))),
      temporary_(sibling(final_, "tmp")),
      files_(files) {
  // A process of the same number on another machine writes there, or left it (remove_abandoned).
  std::error_code unseen;
  int error = fs::exists(fs::symlink_status(temporary_, unseen)) ? EEXIST : 0;
  if (error == 0) error = make_durable_folders(parent_of(final_), files_);
  if (error == 0) error = files_.make_folder(temporary_);
  if (error != 0) {
    throw IoError(
        "{}: found {}, expected to create this folder; check the parent folder's "
        "permissions and free space",
        temporary_.string(), errno_text(error));
  }
}

AtomicFolder::~AtomicFolder() {
  if (!committed_) files_.remove(temporary_);
}

void AtomicFolder::commit() {
  if (committed_) throw InternalError("{}: found a second commit, expected one", final_.string());
  for (const auto& entry : fs::recursive_directory_iterator(temporary_)) {
    if (entry.is_regular_file() || entry.is_directory()) fsync_path(entry.path(), files_);
  }
  fsync_path(temporary_, files_);
  // A rename takes the place of an empty folder, and of no other.
  if (is_there(final_) && !is_empty_folder(final_)) {
    const fs::path old = exchange_folders(temporary_, final_, files_);
    committed_ = true;
    fsync_path(parent_of(final_), files_);
    files_.remove(old);  // the new folder is in place; a rest of the old one is no failure
    return;
  }
  if (const int error = files_.rename(temporary_, final_)) {
    throw_unrenamed(temporary_, final_, error);
  }
  committed_ = true;
  fsync_path(parent_of(final_), files_);
}

std::optional<fs::path> find_replaced(const fs::path& final_path) {
  const fs::path target = without_trailing_slash(final_path);
  if (is_there(target)) return std::nullopt;
  const std::vector<fs::path> found = siblings(target, replaced_prefix(target));
  return found.empty() ? std::nullopt : std::optional(found.front());
}

bool finish_replacement(const fs::path& final_path, FileSystem& files) {
  const fs::path target = without_trailing_slash(final_path);
  const std::optional<fs::path> replaced = find_replaced(target);
  if (replaced) {
    if (const int error = files.rename(*replaced, target)) {
      throw_unrenamed(*replaced, target, error);
    }
    fsync_path(parent_of(target), files);
  }
  for (const fs::path& path : siblings(target, replaced_prefix(target))) files.remove(path);
  return replaced.has_value();
}

}  // namespace strata
