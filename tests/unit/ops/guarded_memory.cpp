#include "guarded_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <new>

namespace strata::ops {
namespace {

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// A tensor's mapping: a page that says how long it is, one without rights, the tensor's, one
// without rights. The tensor begins in the first of its pages.
void unmap(void* data) {
  if (data == nullptr) return;
  const size_t page = page_size();
  char* const begin =
      static_cast<char*>(data) - reinterpret_cast<uintptr_t>(data) % page - 2 * page;
  size_t size = 0;
  std::memcpy(&size, begin, sizeof size);
  munmap(begin, size);
}

class GuardedAllocator final : public c10::Allocator {
 public:
  explicit GuardedAllocator(bool behind) : behind_(behind) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &unmap, c10::kCPU};
    const size_t page = page_size();
    const size_t usable = (bytes + page - 1) / page * page, size = usable + 3 * page;
    void* const begin = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED) throw std::bad_alloc();
    char* const first = static_cast<char*>(begin) + 2 * page;
    if (mprotect(begin, page, PROT_READ | PROT_WRITE) != 0 ||
        mprotect(first, usable, PROT_READ | PROT_WRITE) != 0) {
      throw std::bad_alloc();
    }
    std::memcpy(begin, &size, sizeof size);
    // Fresh pages are zero, which hides that a kernel counts on it.
    std::memset(first, 0xff, usable);
    // Behind: the last element touches the page without rights, so the first one has the alignment
    // of its type alone, as a slice of a tensor has.
    char* const data = behind_ ? first + usable - bytes : first;
    return {data, data, &unmap, c10::kCPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &unmap; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  bool behind_;
};

}  // namespace

bool guard_memory(std::string_view side) {
  if (side != "behind" && side != "before") return false;
  static GuardedAllocator allocator(side == "behind");
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
  return true;
}

}  // namespace strata::ops
