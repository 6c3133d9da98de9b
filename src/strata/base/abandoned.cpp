#include "strata/base/abandoned.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "strata/base/error.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

// Does not wait for a writer where the path is a pipe.
Descriptor opened(const fs::path& path) {
  return Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

bool claim(const Descriptor& file) { return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0; }

constexpr pid_t kLargestProcess = 4194304;  // Linux' PID_MAX_LIMIT: a date is none

// The number of a process after the prefix, as it is written, if the name is nothing else.
std::optional<pid_t> process_in(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  pid_t process = 0;
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + prefix.size(), end, process);
  const bool is_process = error == std::errc() && last == end && process > 0 &&
                          process <= kLargestProcess &&
                          name.substr(prefix.size()) == std::to_string(process);
  return is_process ? std::optional(process) : std::nullopt;
}

bool is_alive(pid_t process) { return ::kill(process, 0) == 0 || errno != ESRCH; }

bool is_own(const Descriptor& file) {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 && status.st_uid == ::geteuid();
}

// Whether other machines may have mounted what it lies on, whose locks this one need not see.
bool may_be_shared(const Descriptor& file) {
  // As in linux/magic.h, and, as coreutils' stat knows them, those of Lustre, GPFS, BeeGFS,
  // VirtualBox, VMware, PanFS, StorNext, ACFS, Ibrix, VxFS and Parallels.
  constexpr std::array<uint32_t, 23> kShared = {
      0x6969,     0x517B,     0xFF534D42, 0xFE534D42, 0x65735546, 0x01021997,
      0x00C36400, 0x5346414F, 0x6B414653, 0x73757245, 0x7461636F, 0x01161970,
      0x0BD00BD0, 0x47504653, 0x19830326, 0x786F4256, 0xBACBACBC, 0xAAD7AAEA,
      0xBEEFDEAD, 0x61636673, 0x013111A8, 0xA501FCF5, 0x7C7C6673};
  struct statfs found {};
  return ::fstatfs(file.get(), &found) != 0 ||
         std::ranges::find(kShared, static_cast<uint32_t>(found.f_type)) != kShared.end();
}

// Whether the path is `folder` or lies in it.
bool lies_in(const fs::path& path, const fs::path& folder) {
  std::error_code of_path, of_folder;
  const fs::path relative = fs::weakly_canonical(path, of_path)
                                .lexically_relative(fs::weakly_canonical(folder, of_folder));
  if (of_path || of_folder) return true;  // who cannot tell leaves it alone
  return !relative.empty() && *relative.begin() != "..";
}

// Whether it is gone.
bool remove_one(const fs::path& path, std::span<const fs::path> in_use,
                std::vector<std::string>& notes) {
  if (std::ranges::any_of(in_use, [&](const fs::path& one) { return lies_in(one, path); })) {
    return false;
  }
  const Descriptor file = opened(path);
  if (file.get() < 0 || !is_own(file)) return false;
  if (may_be_shared(file)) {
    notes.push_back(
        fmt::format("left {} where it is: another machine may be writing it, whose locks are not "
                    "seen on this file system; remove it when nothing does",
                    path.string()));
    return false;
  }
  if (!claim(file)) return false;
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return false;
  notes.push_back(fmt::format("removed {}, which a killed process left", path.string()));
  return true;
}

}  // namespace

WriteClaim::WriteClaim(const fs::path& temporary) : file_(opened(temporary)) {
  if (file_.get() >= 0 && !claim(file_)) file_.close();
}

std::vector<std::string> remove_abandoned(const fs::path& final_path,
                                          std::span<const fs::path> in_use) {
  const fs::path path = final_path.has_filename() ? final_path : final_path.parent_path();
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string prefix = path.filename().string() + ".tmp-";
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    const auto process = process_in(entry.path().filename().string(), prefix);
    if (process && (*process == ::getpid() || !is_alive(*process))) found.push_back(entry.path());
  }
  std::vector<std::string> notes;
  for (const fs::path& one : found) {
    if (remove_one(one, in_use, notes)) continue;
    if (process_in(one.filename().string(), prefix) != ::getpid()) continue;
    throw IoError(
        "{}: found it there, and a process of the same number, in another container or on another "
        "machine, may be writing it, expected nothing of that name; wait until that one has ended, "
        "or remove it, then run again",
        one.string());
  }
  return notes;
}

}  // namespace strata
