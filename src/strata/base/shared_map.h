// Whether files of a folder can be mapped so that what is written to the map is in the file. Never:
// maps what somebody needs (file.h, shard/home_file.h).
#pragma once

#include <filesystem>

namespace strata {

// Tries it with a small file. False on file systems that keep no pages that others
// share, such as FUSE with direct_io. Errors: IoError where no file can be made.
bool has_writable_maps(const std::filesystem::path& folder);

}  // namespace strata
