// What to do about a write that failed, by the operating system's error.
#pragma once

#include <cerrno>
#include <string>

namespace strata {

// `otherwise`: where neither the disk is at fault nor a limit on the size of files.
inline std::string write_advice(int error_number, const std::string& otherwise) {
  if (error_number == EIO) return "check the disk";
  if (error_number != EFBIG) return otherwise;
  return "raise the limit on the size of a file (ulimit -f), or choose a folder whose file system "
         "holds such files";
}

}  // namespace strata
