#include "strata/checkpoint/repair.h"

#include <set>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/folder_lock.h"
#include "strata/base/folder_update.h"
#include "strata/checkpoint/folders.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

// Checkpoints of which a replacement (base/file.h) left something beside them.
std::set<fs::path> replaced_checkpoints(const fs::path& folder) {
  std::set<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const size_t end = name.find(".replaced-");
    if (!name.starts_with('.') || end == std::string::npos) continue;
    if (step_of(name.substr(1, end - 1)) >= 0) found.insert(folder / name.substr(1, end - 1));
  }
  return found;
}

std::string given_back(const fs::path& path) {
  return fmt::format(
      "{}: it was being replaced when the run crashed; its name and its previous content are "
      "restored",
      path.string());
}

bool names_checkpoint(const fs::path& path) {
  return step_of(path.has_filename() ? path : path.parent_path()) >= 0;
}

fs::path parent_of(const fs::path& path) {
  const fs::path parent = (path.has_filename() ? path : path.parent_path()).parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace

std::vector<std::string> finish_interrupted(const fs::path& folder, FileSystem& files) {
  std::vector<std::string> done;
  if (has_unfinished_update(folder)) {
    done.push_back(fmt::format(
        "{}: the run crashed while it put the files of a result into place; now they are in place",
        folder.string()));
  }
  finish_folder_update(folder, files);
  for (const fs::path& path : replaced_checkpoints(folder)) {
    if (finish_replacement(path, files)) done.push_back(given_back(path));
  }
  return done;
}

std::vector<std::string> repair(const fs::path& path) {
  std::vector<std::string> done;
  const bool is_checkpoint = names_checkpoint(path);
  if (is_checkpoint && find_replaced(path)) {
    const FolderLock lock(parent_of(path));
    if (finish_replacement(path)) done.push_back(given_back(path));
  }
  // The files of a checkpoint are its output folder's matter.
  if (is_checkpoint || !fs::is_directory(path)) return done;
  if (!has_unfinished_update(path) && replaced_checkpoints(path).empty()) return done;
  const FolderLock lock(path);
  for (std::string& line : finish_interrupted(path)) done.push_back(std::move(line));
  return done;
}

void require_finished(const fs::path& path) {
  require_whole_folder(path);
  const auto replaced = names_checkpoint(path) ? find_replaced(path) : std::nullopt;
  if (!replaced) return;
  throw IoError(
      "{}: found it as {}, where a crash left it while it was being replaced, expected its name; "
      "strata inspect {} --repair gives it back, and so does the next run in that folder",
      path.string(), replaced->filename().string(), path.string());
}

}  // namespace strata::checkpoint
