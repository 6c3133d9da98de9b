// What the families over BERT's blocks read alike. Owns: those keys. Never: what only one has.
#pragma once

#include "strata/models/bert/config.h"
#include "strata/models/config_reader.h"

namespace strata::models {

// The sizes, the layers' settings and the token of padding, over the defaults in `c`. ConfigError
// for what makes a decoder of it.
void parse_bert_body(const ConfigReader& config, BertConfig& c);

}  // namespace strata::models
