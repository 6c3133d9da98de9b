#include "strata/base/scratch_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <vector>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/owner_file.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwner = "owner";
constexpr const char* kNew = ".new-";
// Between its making and its lock a folder has another name, for far less than this.
constexpr auto kLongMade = std::chrono::hours(1);

// The owner file goes last: a removal that is cut short leaves a folder that the next one takes up.
void remove_folder(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename() != kOwner) entries.push_back(entry.path());
  }
  for (const fs::path& entry : entries) fs::remove_all(entry, ignored);
  fs::remove_all(folder, ignored);
}

[[noreturn]] void throw_unusable(const fs::path& folder, int error_number) {
  throw IoError(
      "{}: found {} when making a folder in it, expected a writable folder; change its "
      "permissions or choose another",
      folder.string(), errno_text(error_number));
}

// Removes what an owner left that was killed before the folder had its name.
void remove_half_made(const fs::path& folder) {
  std::error_code error;
  const fs::file_time_type made = fs::last_write_time(folder, error);
  if (error || fs::file_time_type::clock::now() - made < kLongMade) return;
  remove_folder(folder);
}

}  // namespace

int remove_abandoned_scratch_folders(const fs::path& parent, const std::string& prefix) {
  std::error_code error;
  std::vector<fs::path> found, half_made;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix + "-")) found.push_back(entry.path());
    if (name.starts_with(kNew + prefix + "-")) half_made.push_back(entry.path());
  }
  for (const fs::path& folder : half_made) remove_half_made(folder);
  int num_removed = 0;
  for (const fs::path& folder : found) {
    const Descriptor lock(::open((folder / kOwner).c_str(), O_RDWR | O_CLOEXEC));
    if (lock.get() < 0 || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    remove_folder(folder);
    ++num_removed;
  }
  return num_removed;
}

ScratchFolder::ScratchFolder(const fs::path& parent, const std::string& prefix) {
  if (!fs::is_directory(parent)) {
    throw IoError("{}: found no such folder, expected an existing one; create it or choose another",
                  parent.string());
  }
  num_removed_ = remove_abandoned_scratch_folders(parent, prefix);
  // Made and locked under another name, so that nobody sees it without its lock.
  std::string temporary = (parent / (kNew + prefix + "-XXXXXX")).string();
  if (::mkdtemp(temporary.data()) == nullptr) throw_unusable(parent, errno);
  const std::string suffix = temporary.substr(temporary.size() - 6);
  path_ = parent / fmt::format("{}-{}-{}-{}", prefix, host_name(), ::getpid(), suffix);
  const fs::path owner = fs::path(temporary) / kOwner;
  lock_ = Descriptor(::open(owner.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock_.get() < 0 || ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 ||
      ::rename(temporary.c_str(), path_.c_str()) != 0) {
    const int error_number = errno;
    remove_folder(temporary);
    throw_unusable(parent, error_number);
  }
}

ScratchFolder::~ScratchFolder() { remove_folder(path_); }

}  // namespace strata
