// Shows on standard error what a command waits for before it can begin: files of the Hub and
// the preparation of data. Never: downloads, never prepares.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "strata/hf/hub/download.h"

namespace strata::cli {

// On a terminal a line that moves; otherwise a line for each file when it is whole.
hf::DownloadProgress shown_downloads();

// On a terminal a line that moves, and goes with the returned function; otherwise nothing.
std::function<void(const std::string&, int64_t, double)> shown_preparation();

}  // namespace strata::cli
