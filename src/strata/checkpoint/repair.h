// What a crash left half done in an output folder, brought to its end: a result on its way into
// place, a checkpoint that was being replaced. Owns: nothing. Never: what is damaged, nor folders
// that another process writes to.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "strata/base/file_system.h"

namespace strata::checkpoint {

// For an output folder (and its checkpoints) that nobody else writes to. Returns what was done, a
// sentence each.
std::vector<std::string> finish_interrupted(const std::filesystem::path& folder,
                                            FileSystem& files = real_file_system());

// The same of a folder, or of a checkpoint by its name, under the lock of the output folder. Throws
// ConfigError that names a run which writes there.
std::vector<std::string> repair(const std::filesystem::path& path);

// For readers: throws IoError that says where the content of `path` is and what to do when a crash
// left it without its name, or only partly in its place.
void require_finished(const std::filesystem::path& path);

}  // namespace strata::checkpoint
