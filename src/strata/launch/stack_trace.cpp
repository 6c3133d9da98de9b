// Only async-signal-safe calls after the first, which loads what unwinding needs.
#include "strata/launch/stack_trace.h"

#include <execinfo.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace strata::launch {
namespace {

constexpr int kDeepest = 64;

// A signal handler has no other way to its data.
std::atomic<StatusPage*> handler_page = nullptr;  // null: nobody is to write
std::atomic<int> handlers_running = 0;
int handler_target = -1;
static_assert(std::atomic<StatusPage*>::is_always_lock_free);

void set_handler(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(stack_trace_signal(), &action, nullptr);
}

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

void write_stack() {
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
}

void answer(int) {
  const int saved_errno = errno;
  handlers_running.fetch_add(1);
  if (StatusPage* page = handler_page.load()) {
    write_stack();
    page->traces.fetch_add(1);
  }
  handlers_running.fetch_sub(1);
  errno = saved_errno;
}

}  // namespace

StacksOnRequest::StacksOnRequest(StatusPage& page, int descriptor) : is_asked_(descriptor >= 0) {
  if (!is_asked_) return;
  void* frame = nullptr;
  ::backtrace(&frame, 1);
  handler_target = descriptor;
  handler_page.store(&page);
  set_handler(answer);
}

StacksOnRequest::~StacksOnRequest() {
  if (!is_asked_) return;
  set_handler(SIG_IGN);
  handler_page.store(nullptr);
  while (handlers_running.load() > 0) ::usleep(1000);
}

}  // namespace strata::launch
