// Jumps between stacks are what is meant here, and not what a fortified longjmp() looks for.
#undef _FORTIFY_SOURCE
#include "block.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr unsigned kLanes = 32, kMostThreads = 1024;
// Behind what a block asked for: must be left alone.
constexpr size_t kGuardFloats = 64;
constexpr uint32_t kGuard = 0x7FC0DEADu;  // a NaN

enum class State { kReady, kAtBarrier, kAtShuffle, kEnded };

struct Thread {
  ucontext_t beginning;
  bool has_begun = false;
  jmp_buf place;  // where it gave way
  std::unique_ptr<char[]> stack;
  State state;
  uint64_t handed[2];  // of this shuffle and of the one before
  unsigned shuffles;
};

// Of the whole program: kernels run one after the other.
struct Machine {
  const char* kernel = "";
  jmp_buf scheduler;
  std::vector<Thread> threads = std::vector<Thread>(kMostThreads);  // each stays where it is
  unsigned count = 0;                                               // of the block
  unsigned current = 0;
  unsigned round = 0;
  const std::function<void()>* body = nullptr;
  std::vector<uint32_t> shared;
};
Machine machine;

// Jumps, since swapcontext() is a call of the system.
void give_way(State state) {
  Thread& self = machine.threads[machine.current];
  self.state = state;
  if (_setjmp(self.place) == 0) _longjmp(machine.scheduler, 1);
}

// A thread of one block after the other, of whatever kernel.
void live() {
  for (;;) {
    (*machine.body)();
    give_way(State::kEnded);
  }
}

void resume(Thread& thread) {
  if (_setjmp(machine.scheduler) != 0) return;
  if (thread.has_begun) _longjmp(thread.place, 1);
  thread.has_begun = true;
  setcontext(&thread.beginning);
}

void start(Thread& thread) {
  if (!thread.stack) {
    thread.stack.reset(new char[kStackBytes]);
    getcontext(&thread.beginning);
    thread.beginning.uc_stack.ss_sp = thread.stack.get();
    thread.beginning.uc_stack.ss_size = kStackBytes;
    makecontext(&thread.beginning, live, 0);
  }
  thread.state = State::kReady;
  thread.shuffles = 0;
}

// Forward, backward, or from the middle on.
std::vector<unsigned> order_of_round() {
  std::vector<unsigned> order(machine.count);
  std::iota(order.begin(), order.end(), 0u);
  if (machine.round % 3 == 1) std::ranges::reverse(order);
  if (machine.round % 3 == 2) std::ranges::rotate(order, order.begin() + machine.count / 2);
  ++machine.round;
  return order;
}

bool run_ready() {
  bool ran = false;
  for (const unsigned index : order_of_round()) {
    Thread& thread = machine.threads[index];
    if (thread.state != State::kReady) continue;
    machine.current = index;
    threadIdx = {index, 0, 0};
    resume(thread);
    ran = true;
  }
  return ran;
}

// Warps whose lanes have all come to a shuffle go on.
bool release_warps() {
  bool released = false;
  for (unsigned first = 0; first < machine.count; first += kLanes) {
    const auto warp = machine.threads.begin() + first;
    if (!std::all_of(warp, warp + kLanes,
                     [](const Thread& t) { return t.state == State::kAtShuffle; })) {
      continue;
    }
    std::for_each(warp, warp + kLanes, [](Thread& t) { t.state = State::kReady; });
    released = true;
  }
  return released;
}

// Threads that have ended do not count, as on GPUs since Volta.
bool release_block() {
  bool released = false;
  for (unsigned i = 0; i < machine.count; ++i) {
    if (machine.threads[i].state == State::kAtShuffle) {
      machine.current = i;
      fail("found a shuffle to which not all lanes of the warp come");
    }
  }
  for (unsigned i = 0; i < machine.count; ++i) {
    if (machine.threads[i].state != State::kAtBarrier) continue;
    machine.threads[i].state = State::kReady;
    released = true;
  }
  return released;
}

void run_block(size_t shared_floats) {
  machine.shared.assign(shared_floats + kGuardFloats, kGuard);
  for (unsigned i = 0; i < machine.count; ++i) start(machine.threads[i]);
  while (run_ready() || release_warps() || release_block()) {
  }
  for (size_t i = shared_floats; i < machine.shared.size(); ++i) {
    if (machine.shared[i] != kGuard) fail("found a write behind the block's shared memory");
  }
}

}  // namespace

void run(const char* name, dim3 blocks, unsigned threads, size_t shared_bytes,
         const std::function<void()>& thread) {
  machine.kernel = name;
  machine.count = threads;
  machine.body = &thread;
  if (threads == 0 || threads > kMostThreads || threads % kLanes != 0) fail("found no whole warps");
  if (shared_bytes > (48u << 10)) fail("found more than 48 KiB of shared memory");
  gridDim = blocks;
  blockDim = {threads, 1, 1};
  for (unsigned y = 0; y < blocks.y; ++y) {
    for (unsigned x = 0; x < blocks.x; ++x) {
      blockIdx = {x, y, 0};
      run_block(shared_bytes / sizeof(float));
    }
  }
}

void fail(const char* what) {
  std::fprintf(stderr, "kernel %s, block %u %u, thread %u: %s\n", machine.kernel, blockIdx.x,
               blockIdx.y, machine.current, what);
  std::abort();
}

float* dynamic_shared_memory() { return reinterpret_cast<float*>(machine.shared.data()); }

void barrier() { give_way(State::kAtBarrier); }

uint64_t exchange(uint64_t bits, unsigned lane_mask) {
  Thread& self = machine.threads[machine.current];
  const unsigned index = machine.current, slot = self.shuffles % 2;
  self.handed[slot] = bits;
  ++self.shuffles;
  give_way(State::kAtShuffle);
  const Thread& partner = machine.threads[index / kLanes * kLanes + ((index ^ lane_mask) % kLanes)];
  return partner.handed[slot];
}

}  // namespace emulation
