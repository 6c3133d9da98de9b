// What the probes' main functions share: errors become messages and exit codes, as the program's.
#pragma once

#include <cstdio>
#include <exception>
#include <functional>

#include "leave.h"
#include "strata/base/error.h"

namespace strata {

// `usage` is said, with exit code 2, unless there are `num_arguments` of them.
inline int probe_main(int argc, int num_arguments, const char* usage,
                      const std::function<void()>& work) {
  if (argc != num_arguments + 1) {
    std::fprintf(stderr, "usage: %s\n", usage);
    return 2;
  }
  try {
    work();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    leave(error.exit_code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "internal: %s\n", error.what());
    leave(3);
  }
  leave(0);
}

}  // namespace strata
