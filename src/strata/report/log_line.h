// One logged moment as the reference's Trainer prints it. Never: where the line goes.
#pragma once

#include <string>

#include "strata/base/json.h"

namespace strata::report {

// The text of Python's %.4g ("4.133", "1.2e-05", "nan").
std::string four_digits(double value);

// "{'loss': '4.133', 'num_tokens': 512}": floats as %.4g strings, everything else by Python's repr;
// `total_flos` is left out as the reference does. `values`: an object in the order to be printed.
std::string log_line(const Json& values);

}  // namespace strata::report
