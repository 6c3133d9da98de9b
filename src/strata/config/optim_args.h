// `optim_args` of a run: what an update rule takes beside the settings that all share.
// Owns: its keys. Never: formulas (optim/update_rules.h).
#pragma once

#include <string>

namespace strata::config {

// Of torch.optim.SGD.
struct SgdArgs {
  double momentum = 0, dampening = 0;
  bool nesterov = false;
};

// "momentum=0.9,nesterov=true", as transformers reads it; empty or "none": nothing is given.
// `subject` begins the ConfigError about what does not fit.
SgdArgs parse_sgd_args(const std::string& text, const std::string& subject);

// The text that parse_sgd_args() reads; empty without momentum.
std::string sgd_args_text(const SgdArgs& args);

// The same for all texts that mean the same; one that cannot be read stays as it is.
std::string normal_optim_args(const std::string& text);

}  // namespace strata::config
