// What a killed process left under the temporary name of something that it was writing. Owns:
// telling it from what is being written now. Never: anything but FINAL.tmp-PID.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "strata/base/descriptor.h"

namespace strata {

// A lock (flock) on what this process writes under a temporary name, as long as it lives. Seen by
// all containers of this machine, and by no other machine: file servers' clients (NFS) and FUSE
// keep locks of folders to themselves. Without effect on a file system without locks.
class WriteClaim {
 public:
  // Requires: the file or folder is there.
  explicit WriteClaim(const std::filesystem::path& temporary);

 private:
  Descriptor file_;
};

// Removes the files and folders FINAL.tmp-PID beside FINAL whose process is not seen here or has
// this one's number, that nobody has claimed and that belong to this user; says which. On a file
// system that several machines may have mounted all stay, of which it says so, and so does what
// cannot be locked, and what is, or holds, one of `in_use`: what FINAL is made of. Requires: this
// process has not begun to write FINAL. IoError where something of its number has to stay, which
// may be the work of a process in another container or on another machine.
std::vector<std::string> remove_abandoned(const std::filesystem::path& final_path,
                                          std::span<const std::filesystem::path> in_use = {});

}  // namespace strata
