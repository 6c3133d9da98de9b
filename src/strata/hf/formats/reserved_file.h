// A new file of known size: room on the disk is taken before its first byte, so that a full disk is
// found there. Owns: how one comes to be, and its errors. Never: what is written to it.
#pragma once

#include <cstdint>
#include <filesystem>

#include "strata/base/descriptor.h"
#include "strata/base/file_system.h"

namespace strata::hf {

// An existing file is overwritten. IoError for a folder that takes no file, and where the disk has
// no room for so many bytes; then nothing is left of it.
Descriptor create_reserved(const std::filesystem::path& path, uint64_t size_bytes,
                           FileSystem& files);

}  // namespace strata::hf
