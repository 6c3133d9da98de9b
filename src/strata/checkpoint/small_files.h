// What lies beside the tensors of a checkpoint: texts such as trainer_state.json, whole by their
// checksums in the manifest. Never: what they mean (train/).
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "strata/base/file_system.h"
#include "strata/checkpoint/manifest.h"

namespace strata::checkpoint {

// File name -> content ("trainer_state.json" -> ...); a name may lie in a folder below.
using SmallFiles = std::map<std::string, std::string>;

// Writes them and notes them in the manifest. IoError.
void write_small_files(const std::filesystem::path& folder, const SmallFiles& small_files,
                       Manifest& manifest, FileSystem& files);

}  // namespace strata::checkpoint
