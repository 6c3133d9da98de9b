// Entry point: hands argv to the command line and ends with its exit code.
#include <unistd.h>

#include <cstdio>

#include "strata/base/sanitized.h"
#include "strata/base/save_request.h"
#include "strata/base/stop_request.h"
#include "strata/cli/command.h"
#include "strata/libtorch/cuda_build.h"

namespace {

// Leaks are looked for, and profiles of devices written, when globals are taken down. Those of a
// device may wait for it, and after a failure it may wait for ranks that are gone.
#if STRATA_SANITIZED
bool takes_globals_down(int) { return true; }
#else
bool takes_globals_down(int exit_code) { return strata::kHasCuda && exit_code == 0; }
void hold_requests() {
  strata::hold_stop_requests();
  strata::hold_save_requests();
}
// Ahead of the libraries' constructors, which take most of the program's start: a request that
// comes meanwhile, to save or to stop, must not kill a run. A sanitizer has to be there before any
// code of ours.
[[gnu::used, gnu::section(".preinit_array")]] void (*const hold_first)() = hold_requests;
#endif

}  // namespace

int main(int argc, char** argv) {
  const int exit_code = strata::cli::run(argc, argv);
  if (takes_globals_down(exit_code)) return exit_code;
  // libtorch's globals (the table of its operators) take a quarter of a short command's time to
  // take down, of every rank, and hold nothing that the system does not take back.
  std::fflush(stdout);
  ::_exit(exit_code);
}
