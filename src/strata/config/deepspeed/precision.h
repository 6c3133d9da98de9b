// The blocks `fp16` and `bf16` of a ds_config. Owns: that one of them holds, and the loss scale.
// Never: the scaler (optim/loss_scaler.h).
#pragma once

#include <string>

#include "strata/config/deepspeed/file.h"
#include "strata/config/merge.h"

namespace strata::config {

// ConfigError where the file asks for both, or a flag or variable for the other one than the file:
// that one would win without a word.
void require_one_precision(const DsFile& file, const Merge& merge);

// The loss scale where fp16 is on, by the file or by a flag.
void translate_loss_scale(const DsFile& file, Merge& merge);

// DeepSpeed's defaults, which are not those of torch's scaler. `source`: what asks for DeepSpeed.
void add_scale_defaults(const std::string& source, Merge& merge);

}  // namespace strata::config
