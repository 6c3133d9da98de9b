// Stacks of a rank's threads, written when the launcher asks. Owns: the signal handler. Never: what
// becomes of the text (watchdog.h).
#pragma once

#include "strata/base/status_page.h"

namespace strata::launch {

// In a rank. From now on a thread that receives stack_trace_signal() writes its stack to the
// descriptor and counts it in the page. Both must stay valid; the first call counts.
void write_stacks_on_request(StatusPage& page, int descriptor);

}  // namespace strata::launch
