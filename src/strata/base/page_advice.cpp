#include "strata/base/page_advice.h"

#include <sys/mman.h>
#include <unistd.h>

namespace strata {
namespace {

// The C library has these only from 2.35 on.
constexpr int kPopulateRead = 22, kPopulateWrite = 23;

void advise(const void* data, size_t size_bytes, int advice) {
  if (size_bytes == 0) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(data) + size_bytes;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

void map_pages(std::span<const std::byte> mapped) {
  advise(mapped.data(), mapped.size(), kPopulateRead);
}

void take_pages(std::span<const uint8_t> memory) {
  advise(memory.data(), memory.size(), kPopulateWrite);
}

}  // namespace strata
