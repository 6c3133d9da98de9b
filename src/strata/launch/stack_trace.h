// Stacks of a rank's threads, written when the launcher asks. Owns: the signal handler. Never: what
// becomes of the text (watchdog.h).
#pragma once

#include "strata/base/status_page.h"

namespace strata::launch {

// In a rank: while it lives a thread that receives stack_trace_signal() writes its stack to the
// descriptor (negative: nobody asks) and counts it in the page. Afterwards the signal is ignored,
// for it may be on its way still.
// Requires: page and descriptor outlive it; one at a time.
// Threads: any may be in the handler; the end waits for these.
class StacksOnRequest {
 public:
  StacksOnRequest(StatusPage& page, int descriptor);
  ~StacksOnRequest();
  StacksOnRequest(const StacksOnRequest&) = delete;
  StacksOnRequest& operator=(const StacksOnRequest&) = delete;

 private:
  bool is_asked_;
};

}  // namespace strata::launch
