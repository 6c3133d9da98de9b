#include "strata/base/shared_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "strata/base/descriptor.h"
#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata {

bool has_writable_maps(const std::filesystem::path& folder) {
  constexpr size_t kBytes = 4096;
  std::string probe = (folder / ".map-test-XXXXXX").string();
  const Descriptor file(::mkostemp(probe.data(), O_CLOEXEC));
  if (file.get() < 0) {
    throw IoError(
        "{}: found {} when creating a file in it, expected a writable folder; change its "
        "permissions or choose another",
        folder.string(), errno_text(errno));
  }
  // It has its name while it is mapped: without it some file systems answer otherwise.
  bool is_mapped = false;
  if (::ftruncate(file.get(), kBytes) == 0) {
    void* address =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), /*offset=*/0);
    is_mapped = address != MAP_FAILED;
    if (is_mapped) ::munmap(address, kBytes);
  } else {
    is_mapped = true;  // no room, or a limit: what needs more says so
  }
  ::unlink(probe.c_str());
  return is_mapped;
}

}  // namespace strata
