// System calls that the kernel refuses to one child process, as containers' seccomp profiles and
// limits do. Never: expectations.
#pragma once

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>

namespace strata::testing {

// From now on `call` fails with `error` in this process; for good. `second_argument`, where it is
// not negative: only calls with this one.
inline void refuse_call(long call, int error, int64_t second_argument = -1) {
  const bool is_any = second_argument < 0;
  const auto wanted = static_cast<uint32_t>(second_argument);
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, wanted, 0, static_cast<uint8_t>(is_any ? 0 : 1)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{6, program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    std::abort();
  }
}

// Whether `work` holds in a child process, which may refuse itself calls.
inline bool holds_in_child(const std::function<bool()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    bool holds = false;
    try {
      holds = work();
    } catch (...) {
    }
    ::_exit(holds ? 0 : 1);
  }
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

}  // namespace strata::testing
