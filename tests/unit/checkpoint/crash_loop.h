// A loop over every point at which a disk may go wrong. Owns: the loop. Never: expectations.
#pragma once

#include <filesystem>
#include <random>

#include "../temporary_folder.h"
#include "crash_disk.h"

namespace strata::testing {

// How the operations of for_each_crash() go wrong.
struct CrashLoop {
  CrashDisk::Fault fault;
  int num_variants = 4;  // of what a loss of power leaves: nothing unsynced, all, drawn parts
  bool can_exchange = true;
  std::filesystem::path place = memory_or_disk();
};

// What is left when the `at`-th operation went wrong.
struct Crash {
  int at;
  int variant;  // 1: a loss of power after which everything had reached the disk
  const std::filesystem::path& left;
  CrashDisk& files;
};

// Lets every operation of `act` go wrong, each in a folder of its own that `prepare` fills, and
// shows `judge` what is left beside what `act` returned; at last with none that goes wrong. Returns
// the number of operations.
template <typename Prepare, typename Act, typename Judge>
int for_each_crash(const CrashLoop& loop, const Prepare& prepare, const Act& act,
                   const Judge& judge) {
  for (int at = 0;; ++at) {
    const TemporaryFolder folder(loop.place);
    prepare(folder);
    CrashDisk files(folder.path(), loop.can_exchange);
    files.break_at(at, loop.fault);
    const auto outcome = act(folder.path(), files);
    const bool is_last = files.num_operations() <= at;
    if (loop.fault != CrashDisk::Fault::kPowerLoss) {
      judge(Crash{at, 0, folder.path(), files}, outcome);
    } else {
      std::mt19937 random(static_cast<unsigned>(at));
      for (int variant = 0; variant < loop.num_variants; ++variant) {
        const TemporaryFolder after(memory_or_disk());
        files.restore(after.path(),
                      [&] { return variant == 0 ? false : variant == 1 || random() % 2 == 0; });
        judge(Crash{at, variant, after.path(), files}, outcome);
      }
    }
    if (is_last) return at;
  }
}

}  // namespace strata::testing
