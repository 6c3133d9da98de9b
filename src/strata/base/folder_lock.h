// A lock on a folder that only one run may write to. Owns: the file `.lock` in it while held.
#pragma once

#include <filesystem>

#include "strata/base/descriptor.h"

namespace strata {

// Held by the operating system for this process: a killed process holds nothing. On file systems
// without locks it does nothing. Threads: one.
class FolderLock {
 public:
  // Throws ConfigError naming the owner (host, process, time) when another process holds it.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

}  // namespace strata
