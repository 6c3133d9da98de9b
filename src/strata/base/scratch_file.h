// A file without a name, for what need not fit into memory. Owns: the open file. Never: its layout.
#pragma once

#include <cstdint>
#include <filesystem>

#include "strata/base/descriptor.h"

namespace strata {

// Its blocks are freed when it is closed, however the process ends; what was mapped of it stays
// until that is unmapped.
class ScratchFile {
 public:
  // A file in `folder`, or in the system's folder for temporary files where that one cannot be
  // written. Errors: IoError when neither can.
  explicit ScratchFile(const std::filesystem::path& folder);

  // A path that opens it, in this process and while it is open.
  std::filesystem::path path() const;
  // The folder whose file system holds it.
  const std::filesystem::path& folder() const { return folder_; }
  // Its number in this process, as long as it is open.
  int descriptor() const { return file_.get(); }

 private:
  std::filesystem::path folder_;
  Descriptor file_;
};

// Where the file system of a ScratchFile is full: the file's first `bytes` go to the system's
// folder for temporary files, and `descriptor`, with the path that opens it, is the file there from
// now on. That folder, or an empty path where it is on the same file system or has no room either.
std::filesystem::path move_to_temporary_folder(int descriptor, uint64_t bytes);

}  // namespace strata
