// The line that a run ends with: where its result is and how to ask it. Never: writes the result.
#pragma once

#include <string>

#include "strata/config/run_config.h"

namespace strata::train {

// "result: outputs/first (adapter); report: outputs/first/report.html; ask it: strata chat ...".
// The last part only where `strata chat` answers from such a result.
std::string result_line(const config::RunConfig& config, bool is_adapter);

}  // namespace strata::train
