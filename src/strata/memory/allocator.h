// The two allocators under libtorch's tensors: one for CPU tensors that serves from one range of
// addresses, and one for tensors without data (device "meta") that only keeps the account. Both
// place blocks with the same Arena, so that the second predicts what the first will do.
// Owns: the range of addresses. Never: what a step is.
#pragma once

#include <memory>
#include <mutex>

#include "strata/memory/account.h"

namespace strata::memory {

// Smaller blocks are left to malloc and are in no account: thousands of them are less than a page
// of a model.
inline constexpr int64_t kSmallestBlock = 32 * 1024;

// Makes CPU tensors come from a range of addresses that never moves and whose pages stay with
// the process: after the first step no tensor costs a system call or a page fault, and the largest
// resident size is what a plan says. False where the system refuses the range, and in builds whose
// sanitizer must see every block; everything works as before then. Call once, before tensors exist.
bool install_cpu_allocator(bool even_in_sanitized_builds = false);

// The account of the installed CPU allocator; null without one. Hold the mutex while using it:
// other threads allocate.
Account* cpu_account();
std::mutex& cpu_account_mutex();
// Tensors below kSmallestBlock that were made since the start.
int64_t num_small_tensors();
// Gives pages of free blocks back to the system, such as after loading.
void trim_cpu_memory();

// While it lives, tensors on device "meta" are accounted here. One at a time.
class Imagined {
 public:
  Imagined();
  ~Imagined();
  Imagined(const Imagined&) = delete;
  Imagined& operator=(const Imagined&) = delete;
  Account& account() { return *account_; }

 private:
  std::shared_ptr<Account> account_;
};

}  // namespace strata::memory
