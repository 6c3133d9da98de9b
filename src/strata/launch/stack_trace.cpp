// Only async-signal-safe calls after the first, which loads what unwinding needs.
#include "strata/launch/stack_trace.h"

#include <execinfo.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace strata::launch {
namespace {

constexpr int kDeepest = 64;

// A signal handler has no other way to its data.
StatusPage* handler_page = nullptr;
int handler_target = -1;

void append(char*& end, const char* text) {
  while (*text != '\0') *end++ = *text++;
}

void append_number(char*& end, long number) {
  char digits[24];
  int count = 0;
  do {
    digits[count++] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number > 0);
  while (count > 0) *end++ = digits[--count];
}

void write_stack(int) {
  const int saved_errno = errno;
  char name[17] = {};
  ::prctl(PR_GET_NAME, name);
  char head[96];
  char* end = head;
  append(end, "thread ");
  append_number(end, ::syscall(SYS_gettid));
  append(end, " (");
  append(end, name);
  append(end, ")\n");
  void* frames[kDeepest];
  const int count = ::backtrace(frames, kDeepest);
  [[maybe_unused]] ssize_t ignored = ::write(handler_target, head, static_cast<size_t>(end - head));
  ::backtrace_symbols_fd(frames, count, handler_target);
  handler_page->traces.fetch_add(1);
  errno = saved_errno;
}

}  // namespace

void write_stacks_on_request(StatusPage& page, int descriptor) {
  if (descriptor < 0 || handler_page != nullptr) return;
  void* frame = nullptr;
  ::backtrace(&frame, 1);
  handler_page = &page;
  handler_target = descriptor;
  struct sigaction action {};
  action.sa_handler = write_stack;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(stack_trace_signal(), &action, nullptr);
}

}  // namespace strata::launch
