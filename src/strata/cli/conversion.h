// What `strata convert`, `merge-weights` and `merge-adapter` share: flags that mean the same to
// all, and how they end. Never: what is written (checkpoint/convert/).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "strata/checkpoint/convert/saved_state.h"
#include "strata/cli/file_flags.h"
#include "strata/hf/dtype.h"

namespace strata::cli {

// --dtype: nothing where it is not given. Throws ConfigError for another type.
std::optional<hf::DType> weight_type(const FileFlags& flags,
                                     const char* expected = "float32, bfloat16 or float16");

// --max_shard_size in bytes, 50GB where it is not given. Throws ConfigError for what is no size.
uint64_t max_shard_size(const FileFlags& flags);

// --base_model, or the base that `adapter`, the first of the paths, names: a folder, or that of a
// name on the Hub, downloaded where the network may be used. Throws ConfigError where it names
// none.
std::filesystem::path base_of(const FileFlags& flags, const checkpoint::SavedState& adapter);

// Call before weights are read whole, one after another. Blocks of a tensor's size go back to the
// system when they are freed; on the heap, aligned ones would leave holes that the next one does
// not fit, and memory would grow with the model.
void give_back_freed_tensors();

// Prints the notes and, last, where the result lies.
void tell_result(const std::vector<std::string>& notes, const std::filesystem::path& out);

}  // namespace strata::cli
