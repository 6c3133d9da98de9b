#include "strata/memory/probe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "strata/base/descriptor.h"

namespace strata::memory {
namespace {

// A line such as "VmHWM:   123456 kB".
int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    long long kilobytes = 0;
    if (line.starts_with(key) && std::sscanf(line.c_str() + key.size(), ":%lld", &kilobytes) == 1) {
      return int64_t{1024} * kilobytes;
    }
  }
  return 0;
}

}  // namespace

int64_t peak_resident_bytes() { return status_bytes("VmHWM"); }

bool reset_peak_resident() {
  const Descriptor file(::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC));
  return file.get() >= 0 && ::write(file.get(), "5", 1) == 1;
}

}  // namespace strata::memory
