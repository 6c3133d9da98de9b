// The request to save a checkpoint and to train on: SIGUSR2. Owns: that it waits until somebody
// asks for it. Never: a handler, nor saves.
#pragma once

namespace strata {

// From here on the signal waits, in this thread and in those that it starts, also for whoever asks
// the first time much later; without it the signal ends the program, as the system has it. Nothing
// is interrupted by it. Safe before the first constructor. Requires: no other threads yet.
void hold_save_requests();

// Whether one has come since this was asked the last time. Several are one.
bool take_save_request();

}  // namespace strata
