// Flags of `strata convert` that say how weights become codes of bitsandbytes. Never: settings of a
// run (config/), or which target takes which flag.
#pragma once

#include "strata/cli/file_flags.h"
#include "strata/hf/dtype.h"
#include "strata/models/quantization.h"

namespace strata::cli {

// Flags that are not given have the values of training. Throws ConfigError with the flag's name.
models::QuantizationOptions quantization_of(const FileFlags& flags, bool in_8bit);

// What transformers knows as bnb_4bit_quant_storage. Throws ConfigError.
hf::DType storage_of(const FileFlags& flags);

}  // namespace strata::cli
