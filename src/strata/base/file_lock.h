// A lock that processes wait for, such as for a file that one of them makes. Owns: the open file.
// Never removes it: others may wait on it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "strata/base/descriptor.h"

namespace strata {

// Held while it lives; the operating system frees it when the process dies. Threads: one.
class FileLock {
 public:
  // Called with the holder's note several times a second; empty: there is none.
  using WhileWaiting = std::function<void(const std::string& note)>;

  // Creates the file where it is missing and waits until nobody else holds it. Errors: IoError,
  // also for a file system without locks.
  explicit FileLock(const std::filesystem::path& path, const WhileWaiting& while_waiting = {});

  // What those who wait are to know. At most kNoteBytes are kept.
  void leave_note(std::string_view text) const;
  static constexpr size_t kNoteBytes = 64;

 private:
  Descriptor file_;
};

}  // namespace strata
