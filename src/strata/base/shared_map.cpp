#include "strata/base/shared_map.h"

#include <sys/mman.h>
#include <unistd.h>

#include "strata/base/probe_file.h"

namespace strata {

bool has_writable_maps(const std::filesystem::path& folder) {
  constexpr size_t kBytes = 4096;
  const ProbeFile file(folder);
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
  return is_mapped;
}

}  // namespace strata
