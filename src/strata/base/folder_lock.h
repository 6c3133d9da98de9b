// A lock on a folder that only one run may write to. Owns: the file `.lock` in it while held, and
// `.lock-owner` where the file system has no locks.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "strata/base/owner_file.h"

namespace strata {

// Held by the operating system for this process: a killed process holds nothing. On a file system
// without locks (flock) a file with the owner's name takes their place: what a killed process of
// this machine leaves there is taken over, and one of another machine is named, with what to
// remove. Threads: one.
class FolderLock {
 public:
  using Flock = std::function<int(int descriptor, int operation)>;

  // Throws ConfigError naming the owner (host, process, time) when another process holds it.
  // `flock`: flock(2), or a test's.
  explicit FolderLock(const std::filesystem::path& folder, const Flock& flock = system_flock());
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // What `.lock` says of this process: whoever reads that sees the same folder.
  const std::string& owner() const { return text_; }
  // Whether the file system has no locks, so that only the owner's file says whose the folder is.
  bool is_by_name() const { return owner_.has_value(); }

 private:
  static Flock system_flock();
  void own_by_name(const std::filesystem::path& folder);
  // The file `.lock`, unless it is a successor's.
  void remove_own();

  std::filesystem::path path_;
  Descriptor file_;
  std::string text_;
  std::optional<OwnerFile> owner_;
};

}  // namespace strata
