// The activation of an MLP without a gate, by transformers' names. Owns: those names. Never: the
// function (nn/activation.h).
#pragma once

#include <string>

#include "strata/models/config_reader.h"
#include "strata/nn/activation.h"

namespace strata::models {

// What config.json says by `key`, or `fallback`. ConfigError for one that is not computed here.
nn::Activation parse_activation(const ConfigReader& config, const std::string& key,
                                const std::string& fallback);

}  // namespace strata::models
