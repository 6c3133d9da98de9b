// Whole files out of gzip and zstd. Never knows what is in them.
#pragma once

#include <filesystem>
#include <string>

namespace strata::data {

// The content of a .gz or .zst file; several members one after the other are one text.
// Errors: FormatError for a broken or cut-off file, IoError as MappedFile.
std::string decompress_file(const std::filesystem::path& path);

}  // namespace strata::data
