// A lock that processes wait for, such as for a file that one of them makes. Owns: the open file.
// Never removes it: others may wait on it.
#pragma once

#include <filesystem>

#include "strata/base/descriptor.h"

namespace strata {

// Held while it lives; the operating system frees it when the process dies. Threads: one.
class FileLock {
 public:
  // Creates the file where it is missing and waits until nobody else holds it. Errors: IoError,
  // also for a file system without locks.
  explicit FileLock(const std::filesystem::path& path);

 private:
  Descriptor file_;
};

}  // namespace strata
