#include "strata/base/probe_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {

ProbeFile::ProbeFile(const std::filesystem::path& folder)
    : path_((folder / ".write-test-XXXXXX").string()), file_(::mkostemp(path_.data(), O_CLOEXEC)) {
  if (file_.get() >= 0) return;
  throw IoError(
      "{}: found {} when creating a file in it, expected a writable folder; change its permissions "
      "or choose another",
      folder.string(), errno_text(errno));
}

ProbeFile::~ProbeFile() { ::unlink(path_.c_str()); }

}  // namespace strata
