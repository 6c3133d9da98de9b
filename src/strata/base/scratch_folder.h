// A folder for the temporary files of one process. A later run tells folders of dead owners from
// those in use, and removes them: nothing that a killed run left stays for long.
// Owns: the folder and its lock. Never: the files inside, or anything without the prefix.
#pragma once

#include <filesystem>
#include <string>

#include "strata/base/descriptor.h"

namespace strata {

// PARENT/PREFIX-HOST-PID-XXXXXX with a file `owner` that this process keeps locked (flock).
// Invariants: a folder of that name is locked from the moment it appears until its owner is gone,
// so that any number of runs can share PARENT; the destructor removes the folder.
class ScratchFolder {
 public:
  // First removes the folders of dead owners. Throws IoError when PARENT is missing or not
  // writable.
  ScratchFolder(const std::filesystem::path& parent, const std::string& prefix);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Folders of dead owners that were removed.
  int num_removed() const { return num_removed_; }

 private:
  std::filesystem::path path_;
  Descriptor lock_;
  int num_removed_ = 0;
};

// Removes folders PARENT/PREFIX-* whose owner is gone; returns their number. And those that an
// owner left behind before they had their name, when they are an hour old.
int remove_abandoned_scratch_folders(const std::filesystem::path& parent,
                                     const std::string& prefix);

}  // namespace strata
