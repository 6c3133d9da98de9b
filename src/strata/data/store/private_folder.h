// Folders below the one for temporary files, where everybody may write: a name there may be
// somebody else's.
#pragma once

#include <filesystem>
#include <string>

namespace strata::data {

// Whether it is a folder, not a link to one, that only this user may read and write.
bool is_private(const std::filesystem::path& folder);

// Makes the folder where nothing is (its parent is there). Returns why it is not private; empty: it
// is.
std::string make_private(const std::filesystem::path& folder);

// Where the processes of this user on this machine keep what has no other place: TMPDIR/
// strata-tokens-UID. Nothing is made. Empty: there is no folder for temporary files.
std::filesystem::path shared_scratch_path();

}  // namespace strata::data
