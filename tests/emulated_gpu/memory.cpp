#include "memory.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace emulated_gpu {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kDefaultDeviceBytes = size_t{8} << 30;

size_t rounded_up(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// Never destroyed: libtorch gives memory back while the program ends.
struct Memory {
  std::map<uintptr_t, Block> blocks;
  uintptr_t next = kAddressesBegin;
  size_t used_device_bytes = 0;
  int opened = 0;
};
Memory& memory() {
  static auto* instance = new Memory;
  return *instance;
}

void protect(const Block& block, int access) { mprotect(block.base, block.mapped_bytes, access); }

void protect_pages(uintptr_t begin, uintptr_t end, int access) {
  begin = begin / kPageBytes * kPageBytes;
  mprotect(reinterpret_cast<void*>(begin), rounded_up(end - begin), access);
}

// The host may read what is being read; it may do nothing with what is being written.
void protect_pending(const Block& block) {
  protect(block, PROT_READ | PROT_WRITE);
  for (const bool writes : {false, true}) {
    for (const Pending& copy : block.pending) {
      if (copy.writes == writes) {
        protect_pages(copy.begin, copy.end, writes ? PROT_NONE : PROT_READ);
      }
    }
  }
}

void on_fault(int number, siginfo_t* info, void* context) {
  // A thread of an operator that runs may not wait for it.
  const std::unique_lock lock(machine_mutex(), std::chrono::seconds(10));
  if (!lock) fail("the host touches %p while an operation runs", info->si_addr);
  const Block* block = block_of(info->si_addr);
  if (block == nullptr) {
    if (is_of_gpu(info->si_addr)) fail("the host touches %p, which is no block", info->si_addr);
    signal(number, SIG_DFL);
    return;  // comes again, and ends the program as usual
  }
  constexpr long long kWriteBit = 2;  // of the page fault's error code
  const bool writes =
      (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWriteBit) != 0;
  const char* what = writes ? "writes" : "reads";
  if (block->kind == Kind::kDevice) {
    fail("the host %s device memory at %p", what, info->si_addr);
  }
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  constexpr uintptr_t kWord = 8;
  for (const Pending& copy : block->pending) {
    if (address + kWord <= copy.begin || address >= copy.end || !(copy.writes || writes)) continue;
    fail("the host %s locked memory at %p that a copy on stream %d still %s", what, info->si_addr,
         copy.stream, copy.writes ? "writes" : "reads");
  }
  // Another part of a page that is closed.
  protect_pages(address, address + 1, PROT_READ | PROT_WRITE);
}

void install_fault_handler() {
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
}

// At `where`, or anywhere; without a file it is no memory.
void* map(void* where, int file, size_t bytes, int access) {
  const int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  void* at = mmap(where, bytes, access, kind | (where != nullptr ? MAP_FIXED : 0), file, 0);
  return at == MAP_FAILED ? nullptr : at;
}

uintptr_t reserve_addresses() {
  void* at = map(nullptr, -1, kAddresses, PROT_NONE);
  if (at == nullptr) fail("could not reserve %zu addresses", kAddresses);
  return reinterpret_cast<uintptr_t>(at);
}

}  // namespace

const uintptr_t kAddressesBegin = reserve_addresses();

std::recursive_timed_mutex& machine_mutex() {
  static auto* mutex = new std::recursive_timed_mutex;
  return *mutex;
}

size_t used_device_bytes() { return memory().used_device_bytes; }

size_t total_device_bytes() {
  static const size_t bytes = [] {
    const char* wanted = std::getenv("EMULATED_GPU_BYTES");
    return wanted == nullptr ? kDefaultDeviceBytes : std::strtoull(wanted, nullptr, 10);
  }();
  return bytes;
}

void* take(size_t size_bytes, Kind kind) {
  const std::lock_guard lock(machine_mutex());
  static const bool installed = (install_fault_handler(), true);
  (void)installed;
  const bool on_device = kind == Kind::kDevice;
  if (on_device && memory().used_device_bytes + size_bytes > total_device_bytes()) return nullptr;
  const size_t mapped = rounded_up(std::max<size_t>(size_bytes, 1));
  if (memory().next + mapped > kAddressesBegin + kAddresses) fail("found no addresses left");
  const int file = memfd_create("emulated_gpu", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(mapped)) != 0) return nullptr;
  void* alias = map(nullptr, file, mapped, PROT_READ | PROT_WRITE);
  const bool closed = on_device && memory().opened == 0;
  void* base = map(reinterpret_cast<void*>(memory().next), file, mapped,
                   closed ? PROT_NONE : PROT_READ | PROT_WRITE);
  close(file);
  if (alias == nullptr || base == nullptr) return nullptr;
  memory().next += mapped + kPageBytes;
  std::memset(alias, 0xFF, mapped);
  Block block{static_cast<std::byte*>(base),
              static_cast<std::byte*>(alias),
              size_bytes,
              mapped,
              kind,
              {},
              {}};
  static_assert(kCellBytes * kCellsOfPage == kPageBytes);
  block.pages.resize(mapped / kPageBytes);
  memory().blocks.emplace(reinterpret_cast<uintptr_t>(base), std::move(block));
  if (on_device) memory().used_device_bytes += size_bytes;
  return base;
}

void give_back(void* p) {
  const std::lock_guard lock(machine_mutex());
  const auto found = memory().blocks.find(reinterpret_cast<uintptr_t>(p));
  if (found == memory().blocks.end()) fail("found no block at %p to free", p);
  const Block& block = found->second;
  if (block.kind == Kind::kDevice) memory().used_device_bytes -= block.size_bytes;
  map(block.base, -1, block.mapped_bytes, PROT_NONE);
  munmap(block.alias, block.mapped_bytes);
  memory().blocks.erase(found);
}

Block* block_of(const void* p) {
  if (!is_of_gpu(p)) return nullptr;
  const std::lock_guard lock(machine_mutex());
  auto& blocks = memory().blocks;
  auto next = blocks.upper_bound(reinterpret_cast<uintptr_t>(p));
  if (next == blocks.begin()) return nullptr;
  Block& block = std::prev(next)->second;
  return block.contains(p) ? &block : nullptr;
}

void* alias_of(const void* p) {
  const Block* block = block_of(p);
  if (block == nullptr) return const_cast<void*>(p);
  return block->alias + (static_cast<const std::byte*>(p) - block->base);
}

DeviceMemoryOpened::DeviceMemoryOpened() {
  const std::lock_guard lock(machine_mutex());
  if (memory().opened++ > 0) return;
  for (const auto& [_, block] : memory().blocks) {
    if (block.kind == Kind::kDevice) protect(block, PROT_READ | PROT_WRITE);
  }
}

DeviceMemoryOpened::~DeviceMemoryOpened() {
  const std::lock_guard lock(machine_mutex());
  if (--memory().opened > 0) return;
  for (const auto& [_, block] : memory().blocks) {
    if (block.kind == Kind::kDevice) protect(block, PROT_NONE);
  }
}

void close_to_host(Block& block, const Pending& copy) {
  block.pending.push_back(copy);
  protect_pending(block);
}

void forget_ended(const std::array<Clock, kMostStreams>& host_knows) {
  const std::lock_guard lock(machine_mutex());
  for (auto& [_, block] : memory().blocks) {
    const size_t ended = std::erase_if(block.pending, [&](const Pending& copy) {
      return copy.clock <= host_knows[static_cast<size_t>(copy.stream)];
    });
    if (ended > 0) protect_pending(block);
  }
}

void fail(const char* format, ...) {
  std::fputs("emulated GPU: ", stderr);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  void* frames[60];
  backtrace_symbols_fd(frames, backtrace(frames, 60), STDERR_FILENO);
  std::abort();
}

}  // namespace emulated_gpu
