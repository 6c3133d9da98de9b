#include "strata/memory/allocator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "strata/base/error.h"
#include "strata/base/sanitized.h"
#include "strata/memory/meta_kernels.h"

namespace strata::memory {
namespace {

// Addresses cost nothing until they are written.
constexpr int64_t kImaginedBytes = int64_t{1} << 50;

class CpuAllocator final : public c10::Allocator {
 public:
  CpuAllocator(std::byte* begin, int64_t size) : begin_(begin), size_(size), account_(size) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (static_cast<int64_t>(bytes) >= kSmallestBlock) {
      const std::lock_guard lock(mutex_);
      if (const auto offset = account_.take(static_cast<int64_t>(bytes))) {
        void* data = begin_ + *offset;
        return {data, data, &release, at::Device(at::kCPU)};
      }
    } else if (bytes > 0) {
      num_small_.fetch_add(1, std::memory_order_relaxed);
    }
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  Account& account() { return account_; }
  std::mutex& mutex() { return mutex_; }
  int64_t num_small() const { return num_small_.load(std::memory_order_relaxed); }

  void trim() {
    const std::lock_guard lock(mutex_);
    const int64_t page = ::sysconf(_SC_PAGESIZE);
    for (const Range& range : account_.trim()) {
      const int64_t first = (range.begin + page - 1) / page * page;
      const int64_t last = range.end / page * page;
      // Advice only: where it fails, memory is all that is lost.
      if (first < last) {
        ::madvise(begin_ + first, static_cast<size_t>(last - first), MADV_DONTNEED);
      }
    }
  }

 private:
  static void release(void* data);

  std::byte* begin_;
  int64_t size_;
  std::mutex mutex_;
  Account account_;
  std::atomic<int64_t> num_small_ = 0;
};

// Never destroyed: tensors of static storage may outlive everything.
CpuAllocator* cpu_allocator = nullptr;

void CpuAllocator::release(void* data) {
  CpuAllocator& self = *cpu_allocator;
  auto* at = static_cast<std::byte*>(data);
  if (at < self.begin_ || at >= self.begin_ + self.size_) {
    c10::GetDefaultCPUAllocator()->raw_deallocate(data);
    return;
  }
  const std::lock_guard lock(self.mutex_);
  self.account_.give_back(at - self.begin_);
}

struct ImaginedBlock {
  std::shared_ptr<Account> account;
  int64_t offset;
};

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const at::Device device(at::kMeta);
    if (!account || static_cast<int64_t>(bytes) < kSmallestBlock) {
      return {nullptr, nullptr, &c10::detail::deleteNothing, device};
    }
    if (account->is_elsewhere(current_memory_kind)) {
      account->note_elsewhere(current_memory_kind, static_cast<int64_t>(bytes));
      return {nullptr, nullptr, &c10::detail::deleteNothing, device};
    }
    const auto offset = account->take(static_cast<int64_t>(bytes));
    if (!offset) {
      throw OutOfMemoryError(
          "memory plan: found a tensor of {} bytes, expected less than a petabyte in all; lower "
          "the batch size or the length",
          bytes);
    }
    return {nullptr, new ImaginedBlock{account, *offset}, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}

  std::shared_ptr<Account> account;

 private:
  static void release(void* context) {
    const std::unique_ptr<ImaginedBlock> block(static_cast<ImaginedBlock*>(context));
    block->account->give_back(block->offset);
  }
};

MetaAllocator& meta_allocator() {
  static MetaAllocator* allocator = [] {
    auto* made = new MetaAllocator;
    c10::SetAllocator(at::kMeta, made, /*priority=*/1);
    register_meta_kernels();
    return made;
  }();
  return *allocator;
}

// Four times what the machine has: fragments of addresses are free.
int64_t range_bytes() {
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  return std::max<int64_t>(4 * pages * page, int64_t{64} << 30);
}

}  // namespace

bool install_cpu_allocator(bool even_in_sanitized_builds) {
  if (cpu_allocator != nullptr) return true;
  if (STRATA_SANITIZED && !even_in_sanitized_builds) return false;
  const int64_t size = range_bytes();
  void* begin = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) return false;
  cpu_allocator = new CpuAllocator(static_cast<std::byte*>(begin), size);
  c10::SetCPUAllocator(cpu_allocator, /*priority=*/1);
  return true;
}

Account* cpu_account() { return cpu_allocator != nullptr ? &cpu_allocator->account() : nullptr; }

std::mutex& cpu_account_mutex() { return cpu_allocator->mutex(); }

int64_t num_small_tensors() { return cpu_allocator != nullptr ? cpu_allocator->num_small() : 0; }

void trim_cpu_memory() {
  if (cpu_allocator != nullptr) cpu_allocator->trim();
}

Imagined::Imagined() : account_(std::make_shared<Account>(kImaginedBytes)) {
  meta_allocator().account = account_;
}

Imagined::~Imagined() { meta_allocator().account = nullptr; }

}  // namespace strata::memory
