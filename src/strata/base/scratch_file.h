// A file without a name, for what need not fit into memory. Owns: the open file. Never: its layout.
#pragma once

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

 private:
  std::filesystem::path folder_;
  Descriptor file_;
};

}  // namespace strata
