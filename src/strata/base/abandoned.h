// What a killed process left under the temporary name of something that it was writing. Owns:
// telling it from what is being written now. Never: anything but FINAL.tmp-PID.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "strata/base/descriptor.h"

namespace strata {

// A lock (flock) on what this process writes under a temporary name, as long as it lives. Without
// effect on a file system without locks.
class WriteClaim {
 public:
  // Requires: the file or folder is there.
  explicit WriteClaim(const std::filesystem::path& temporary);

 private:
  Descriptor file_;
};

// Removes the files and folders FINAL.tmp-PID beside FINAL whose process is not on this machine,
// that nobody has claimed and that belong to this user; says which. What cannot be locked stays: it
// may be another machine's. So does what is, or holds, one of `in_use`: what FINAL is made of.
std::vector<std::string> remove_abandoned(const std::filesystem::path& final_path,
                                          std::span<const std::filesystem::path> in_use = {});

}  // namespace strata
