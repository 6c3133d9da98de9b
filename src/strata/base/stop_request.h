// The request to stop, SIGUSR1, in a program's first moments. Owns: that it waits until the program
// knows what it means. Never: a handler (cli/early_stop.h, train/loop/stop_signals.h).
#pragma once

namespace strata {

// From here on the signal waits, in this thread and in those that it starts. Safe before the first
// constructor. Requires: no other threads yet.
void hold_stop_requests();

// One that waits is answered now, and later ones when they come, as the signal's action says, by
// the calling thread; others that run already go on to leave them to it.
void release_stop_requests();

}  // namespace strata
