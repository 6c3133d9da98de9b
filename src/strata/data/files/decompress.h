// Files out of gzip and zstd, piece by piece. Never knows what is in them.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace strata::data {

// Hands the content of a .gz or .zst file to `take` in pieces of about a megabyte; several members
// one after the other are one text.
// Errors: FormatError for a broken or cut-off file, IoError as MappedFile.
void decompress_file(const std::filesystem::path& path,
                     const std::function<void(std::string_view)>& take);

}  // namespace strata::data
