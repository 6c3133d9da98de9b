// The questionnaire of `strata config`: accelerate's questions in accelerate's order, so that the
// same answers give the same file. Never: writes it.
#pragma once

#include "strata/base/json.h"
#include "strata/cli/prompt.h"

namespace strata::cli {

// The answers as a configuration of accelerate. What accelerate knows and Strata cannot run (TPUs,
// fp8, ...) is asked for again with the reason.
Json ask_configuration(Prompt& prompt);

}  // namespace strata::cli
