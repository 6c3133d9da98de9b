// A lock that processes wait for, such as for a file that one of them makes. Owns: the open file.
// Never removes it: others may wait on it.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "strata/base/descriptor.h"

namespace strata {

// Held while it lives; the operating system frees it when the process dies. Threads: one.
class FileLock {
 public:
  // Called with the holder's note several times a second; empty: there is none. False: waited long
  // enough.
  using WhileWaiting = std::function<bool(const std::string& note)>;

  // Creates the file where it is missing and waits until nobody else holds it. Errors: IoError,
  // also for a file system without locks.
  explicit FileLock(const std::filesystem::path& path) : FileLock(open_at(path), path, {}) {}
  // The same; nothing once `while_waiting` has had enough.
  static std::optional<FileLock> wait_for(const std::filesystem::path& path,
                                          const WhileWaiting& while_waiting);

  // What those who wait are to know. At most kNoteBytes are kept. Threads: any, one at a time.
  void leave_note(std::string_view text) const;
  static constexpr size_t kNoteBytes = 1024;
  // The note is on the disk, where other machines find it.
  void sync_note() const;

 private:
  static Descriptor open_at(const std::filesystem::path& path);
  FileLock(Descriptor file, const std::filesystem::path& path, const WhileWaiting& while_waiting);

  Descriptor file_;
};

}  // namespace strata
