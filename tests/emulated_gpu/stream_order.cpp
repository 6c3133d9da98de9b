#include "stream_order.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "launches.h"

namespace emulated_gpu {
namespace {

struct Order {
  std::map<std::pair<int, cudaStream_t>, size_t> streams;
  std::array<Clocks, kMostStreams> known;  // by the latest operation of each stream
  Clocks host;
  std::array<std::vector<const char*>, kMostStreams> names;  // of operations, by clock
  Operation* running = nullptr;
  bool is_strict = std::getenv("EMULATED_GPU_STRICT") != nullptr;
};
Order& order() {
  static auto* instance = new Order;
  return *instance;
}

size_t index_of(cudaStream_t stream) {
  int device = 0;
  // Other streams are those of one device by themselves.
  if (stream == nullptr) cudaGetDevice(&device);
  auto& streams = order().streams;
  const auto found = streams.find({device, stream});
  if (found != streams.end()) return found->second;
  std::set<size_t> taken;
  for (const auto& [_, index] : streams) taken.insert(index);
  size_t index = 0;
  while (taken.contains(index)) ++index;
  if (index == kMostStreams) fail("found more than %d streams", kMostStreams);
  streams[{device, stream}] = index;
  return index;
}

bool is_traced() {
  static const bool is_wanted = std::getenv("EMULATED_GPU_TRACE") != nullptr;
  return is_wanted;
}

const char* name_of(int stream, Clock clock) {
  const auto& names = order().names[static_cast<size_t>(stream)];
  return clock == 0 || clock > names.size() ? "?" : names[clock - 1];
}

struct Access {
  int stream;
  Clock clock;
  bool writes;
  const void* at;
  bool must_be_written;
};

[[noreturn]] void fail_unordered(const Access& access, int other, Clock clock, bool wrote) {
  fail("%s (stream %d) %s %p, which %s (stream %d) %s, and nothing orders them",
       name_of(access.stream, access.clock), access.stream, access.writes ? "writes" : "reads",
       access.at, name_of(other, clock), other, wrote ? "writes" : "reads");
}

// Not what an operation has written itself, or read before.
bool is_first(const Cell& cell, const Access& access) {
  if (cell.writer == access.stream && cell.write == access.clock) return false;
  return access.writes || cell.reads[static_cast<size_t>(access.stream)] != access.clock;
}

// Returns whether the operation had not touched the cell in this way.
bool check(Cell& cell, const Access& access) {
  const bool result = is_first(cell, access);
  const auto& known = order().known[static_cast<size_t>(access.stream)].of;
  if (cell.writer < 0 && access.must_be_written) {
    fail("%s reads %p, which nothing has written", name_of(access.stream, access.clock), access.at);
  }
  if (cell.writer >= 0 && cell.write > known[static_cast<size_t>(cell.writer)]) {
    fail_unordered(access, cell.writer, cell.write, true);
  }
  if (!access.writes) {
    cell.reads[static_cast<size_t>(access.stream)] = access.clock;
    return result;
  }
  for (int stream = 0; stream < kMostStreams; ++stream) {
    const Clock read = cell.reads[static_cast<size_t>(stream)];
    if (read > known[static_cast<size_t>(stream)]) fail_unordered(access, stream, read, false);
  }
  cell.reads.fill(0);
  cell.write = access.clock;
  cell.writer = static_cast<int8_t>(access.stream);
  return result;
}

// The cells [first, last) of a page. Returns how many of them the operation had not touched so.
size_t check(Page& page, size_t first, size_t last, const Access& access) {
  const bool is_whole = first == 0 && last == kCellsOfPage;
  if (is_whole && !page.cells) return check(page.uniform, access) ? kCellsOfPage : 0;
  if (!page.cells) {
    page.cells = std::make_unique<std::array<Cell, kCellsOfPage>>();
    page.cells->fill(page.uniform);
  }
  size_t count = 0;
  for (size_t cell = first; cell < last; ++cell) count += check((*page.cells)[cell], access);
  if (is_whole && access.writes) {
    page.uniform = page.cells->front();
    page.cells.reset();
  }
  return count;
}

}  // namespace

void Clocks::join(const Clocks& other) {
  for (size_t i = 0; i < of.size(); ++i) of[i] = std::max(of[i], other.of[i]);
}

bool Clocks::covers(const Clocks& other) const {
  return std::ranges::equal(of, other.of, std::greater_equal<>());
}

Operation::Operation(const char* name, cudaStream_t stream, Reading reading)
    : lock_(machine_mutex()), reading_(reading), outer_(order().running) {
  const size_t index = index_of(stream);
  Clocks& known = order().known[index];
  known.join(order().host);
  stream_ = static_cast<int>(index);
  clock_ = ++known.of[index];
  order().names[index].push_back(name);
  order().running = this;
}

Operation::~Operation() {
  order().running = outer_;
  if (!is_traced()) return;
  std::fprintf(stderr, "emulated GPU: stream %d: %s: reads %zu, writes %zu bytes\n", stream_,
               name_of(stream_, clock_), read_bytes_, written_bytes_);
}

void Operation::touches(const void* at, size_t size_bytes, bool writes) {
  Block* block = block_of(at);
  if (block != nullptr && size_bytes > 0) touches(*block, at, size_bytes, writes);
}

void Operation::touches(Block& block, const void* at, size_t size_bytes, bool writes) {
  const auto begin = reinterpret_cast<uintptr_t>(at);
  const size_t offset = begin - reinterpret_cast<uintptr_t>(block.base);
  if (offset + size_bytes > block.size_bytes) {
    fail("%s (stream %d) %s %zu bytes at %p, which is %zu bytes into a block of %zu",
         name_of(stream_, clock_), stream_, writes ? "writes" : "reads", size_bytes, at, offset,
         block.size_bytes);
  }
  // What the host has written into locked memory is not seen.
  const bool must_be_written = order().is_strict && !LaunchesLeftOut::is_active() && !writes &&
                               reading_ == Reading::kUses && block.kind == Kind::kDevice;
  const Access access{stream_, clock_, writes, at, must_be_written};
  const size_t end = (offset + size_bytes - 1) / kCellBytes + 1;
  for (size_t cell = offset / kCellBytes; cell < end;) {
    const size_t first = cell % kCellsOfPage;
    const size_t last = std::min(kCellsOfPage, first + end - cell);
    size_t& bytes = writes ? written_bytes_ : read_bytes_;
    bytes += check(block.pages[cell / kCellsOfPage], first, last, access) * kCellBytes;
    cell += last - first;
  }
  if (block.kind == Kind::kLocked) {
    close_to_host(block, {begin, begin + size_bytes, writes, stream_, clock_});
  }
}

void kernel_touches(Block& block, const void* at, size_t size_bytes, bool writes) {
  order().running->touches(block, at, size_bytes, writes);
}

void set_strict(bool is_strict) { order().is_strict = is_strict; }

void forget_stream(cudaStream_t stream) {
  const std::lock_guard lock(machine_mutex());
  order().streams.erase({0, stream});
}

Clocks enqueued_on(cudaStream_t stream) {
  const std::lock_guard lock(machine_mutex());
  Clocks& known = order().known[index_of(stream)];
  known.join(order().host);
  return known;
}

void stream_waits(cudaStream_t stream, const Clocks& for_these) {
  const std::lock_guard lock(machine_mutex());
  order().known[index_of(stream)].join(for_these);
}

void host_waits(const Clocks& for_these) {
  const std::lock_guard lock(machine_mutex());
  order().host.join(for_these);
  forget_ended(order().host.of);
}

void host_waits_for_stream(cudaStream_t stream) {
  const std::lock_guard lock(machine_mutex());
  if (is_traced()) {
    std::fprintf(stderr, "emulated GPU: stream %zu: the host waits\n", index_of(stream));
  }
  host_waits(enqueued_on(stream));
}

void host_waits_for_all() {
  const std::lock_guard lock(machine_mutex());
  Clocks all;
  for (const Clocks& known : order().known) all.join(known);
  host_waits(all);
}

bool host_knows(const Clocks& of_these) {
  const std::lock_guard lock(machine_mutex());
  return order().host.covers(of_these);
}

}  // namespace emulated_gpu
