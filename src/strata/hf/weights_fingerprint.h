// Whether two copies of a model's weights are the same, told by a few of their bytes. Cheaper than
// base_fingerprint.h, and of the bytes themselves: another type is another copy. Never: a checksum;
// who changed single rows of a matrix may have the same one.
#pragma once

#include <string>

#include "strata/hf/model_folder.h"

namespace strata::hf {

// Of the names, types and shapes of all tensors and of 64 bytes from the middle of up to 512 of
// them, however they lie in files: 2 MB are read of a model of any size. Errors: IoError.
std::string weights_fingerprint(const ModelFolder& folder);

}  // namespace strata::hf
