// Files that replace others of a folder all together, while everything else in the folder stays
// where it is. Owns: two hidden folders in it, `.update.tmp-<pid>` and `.update.ready`. Never: what
// the files are.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "strata/base/file_system.h"

namespace strata {

// No single rename replaces several files, so there are two moments. commit() renames the complete
// and synced `.update.tmp-<pid>` to `.update.ready`: from then on the new files are the ones that
// count. Then they are renamed to their places; whoever comes after a crash carries on.
// Invariants: before that moment the folder is as it was. After it, the entry (the file that a
// reader opens first) is either absent or stands beside all files that belong to it: an old one
// goes first, the new one comes last.
// Threads: one; one process a folder. Errors: IoError.
class FolderUpdate {
 public:
  // Carries on with an update that was cut short; creates the folder where it is missing.
  explicit FolderUpdate(std::filesystem::path folder, FileSystem& files = real_file_system());
  // Without commit() nothing has happened.
  ~FolderUpdate();
  FolderUpdate(const FolderUpdate&) = delete;
  FolderUpdate& operator=(const FolderUpdate&) = delete;

  // Where to write the files. Each must have been synced before commit().
  const std::filesystem::path& path() const { return temporary_; }
  // A small one of them; `name` may lead into a folder below.
  void write(const std::filesystem::path& name, std::string_view content);
  // `entry`: a name among the files, or empty. `removed`: what goes, files and folders by their
  // names, or "below/name" for what lies in a folder below.
  void commit(const std::string& entry, const std::vector<std::string>& removed = {});

 private:
  std::filesystem::path folder_;
  std::filesystem::path temporary_;
  FileSystem& files_;
  bool is_committed_ = false;
};

// Carries on with an update of the folder that was committed and cut short, and removes what one
// left that was not. Requires: no other process writes to the folder now.
void finish_folder_update(const std::filesystem::path& folder,
                          FileSystem& files = real_file_system());

// Whether an update of the folder was committed and not carried to its end.
bool has_unfinished_update(const std::filesystem::path& folder);

// For whoever reads the files of a folder: between the renames they may be of two results. Throws
// IoError that says what to do.
void require_whole_folder(const std::filesystem::path& folder);

}  // namespace strata
