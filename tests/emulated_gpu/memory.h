// Memory of the emulated GPU, and host memory that is locked for it. The program sees what a GPU
// would show it: device memory may not be touched by the host, and locked memory that a copy under
// way still reads or writes is closed to the host until the host has waited for that copy. Each
// block is mapped a second time for the emulation's own work. Owns: the blocks. Never: what orders
// accesses (stream_order.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace emulated_gpu {

// Of the whole machine: work runs one piece after the other, whichever thread brings it.
std::recursive_timed_mutex& machine_mutex();

enum class Kind { kDevice, kLocked };

using Clock = uint32_t;
constexpr int kMostStreams = 12;

// Who last wrote four bytes, and who has read them since, as (stream, clock).
struct Cell {
  Clock write = 0;
  int8_t writer = -1;
  std::array<Clock, kMostStreams> reads{};
};
constexpr size_t kCellBytes = 4, kCellsOfPage = 1024;
// Cells that are all the same are one.
struct Page {
  Cell uniform;
  std::unique_ptr<std::array<Cell, kCellsOfPage>> cells;
};

// A copy that the host has not waited for.
struct Pending {
  uintptr_t begin, end;
  bool writes;
  int stream;
  Clock clock;
};

struct Block {
  std::byte* base;  // as the program knows it
  std::byte* alias;
  size_t size_bytes;  // as it was asked for
  size_t mapped_bytes;
  Kind kind;
  std::vector<Page> pages;
  std::vector<Pending> pending;

  bool contains(const void* p) const {
    const auto* byte = static_cast<const std::byte*>(p);
    return byte >= base && byte < base + mapped_bytes;
  }
};

// Filled with NaN (of every float type; -1 of integers). nullptr where the device, or the machine,
// has no more.
void* take(size_t size_bytes, Kind kind);
void give_back(void* memory);

// All blocks lie in one range of addresses, none of which is used twice.
extern const uintptr_t kAddressesBegin;
constexpr size_t kAddresses = size_t{1} << 43;
inline bool is_of_gpu(const void* p) {
  return reinterpret_cast<uintptr_t>(p) - kAddressesBegin < kAddresses;
}

// The block that holds the address; nullptr outside of all.
Block* block_of(const void* p);
// Where the emulation reads and writes what the program calls `p`; `p` itself outside of all
// blocks.
void* alias_of(const void* p);

size_t used_device_bytes();
size_t total_device_bytes();

// While it lives, kernels that were given addresses of device memory can run.
class DeviceMemoryOpened {
 public:
  DeviceMemoryOpened();
  ~DeviceMemoryOpened();
  DeviceMemoryOpened(const DeviceMemoryOpened&) = delete;
  DeviceMemoryOpened& operator=(const DeviceMemoryOpened&) = delete;
};

// Closes to the host what the copy touches, until forget_ended().
void close_to_host(Block& block, const Pending& copy);
// Opens what copies touched that end before `host_knows`, a clock per stream.
void forget_ended(const std::array<Clock, kMostStreams>& host_knows);

// Prints what was found, where the host is, and ends the program.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace emulated_gpu
