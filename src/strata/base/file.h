// Files as the program reads and writes them: read-only maps, whole files, and writes that either
// happen completely or leave nothing behind. Never: formats, nor any choice of where things go.
// Errors: IoError with the path and the operating system's text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "strata/base/file_system.h"

namespace strata {

// A regular file mapped read-only. An empty file gives an empty span.
// Threads: data() may be read by any number of threads.
// Out of scope: somebody else truncating the file while it is mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> data() const { return data_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void unmap() noexcept;
  std::filesystem::path path_;
  std::span<const std::byte> data_;
};

// Mapped pages that were read would go on counting as this process's memory. Pages that reach over
// the range belong to its neighbours as well and stay. Advice only: where it fails, memory is all
// that is lost.
void forget_pages(std::span<const std::byte> mapped);

std::string read_file(const std::filesystem::path& path);

// Writes to a temporary file in the same folder, syncs it, renames it over `path` and syncs the
// folder. On any failure (a full disk) the temporary is removed and `path` is as it was before.
void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           FileSystem& files = real_file_system());

// A folder that appears under its final name with all its content or not at all.
// Invariants: until commit() only a sibling `FINAL.tmp-<pid>` exists; a previous folder of the
// final name stays in place until the very moment of the exchange and is removed after it. The
// destructor without commit() removes the temporary folder.
class AtomicFolder {
 public:
  explicit AtomicFolder(std::filesystem::path final_path, FileSystem& files = real_file_system());
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  // Where to write the content.
  const std::filesystem::path& path() const { return temporary_; }
  const std::filesystem::path& final_path() const { return final_; }
  // Syncs every file below path(), renames it to the final name, syncs the parent folder.
  void commit();
  // Whether it has its final name, also where commit() failed in the sync after the rename: then a
  // loss of power may still take the name away.
  bool is_in_place() const { return committed_; }

 private:
  std::filesystem::path final_;
  std::filesystem::path temporary_;
  FileSystem& files_;
  bool committed_ = false;
};

// Where the file system cannot exchange two names, AtomicFolder replaces a folder by two renames.
// Of one that was cut short between them: where the earlier content lies, .FINAL.replaced-<pid>,
// while nothing has the final name.
std::optional<std::filesystem::path> find_replaced(const std::filesystem::path& final_path);

// Gives it its name back and says so; where the final name is taken, the replacement was done and
// what is left of the earlier content goes. Requires: no other process is writing `final_path` now.
bool finish_replacement(const std::filesystem::path& final_path,
                        FileSystem& files = real_file_system());

// Creates a folder with its missing parents, and brings their names to the disk: what is saved
// below must not go with them. 0 or an errno value.
int make_durable_folders(const std::filesystem::path& path, FileSystem& files = real_file_system());

// Brings a file's or a folder's content to the disk.
void fsync_path(const std::filesystem::path& path, FileSystem& files = real_file_system());

// Free bytes for this user on the file system that holds `path` (or its nearest existing parent).
uint64_t available_bytes(const std::filesystem::path& path);

// Creates the folder when it is missing and proves by writing to a file that it can be written.
void require_writable_folder(const std::filesystem::path& path);

// The operating system's text for `error_number`, lower case ("no space left on device").
std::string errno_text(int error_number);

// Writes all of `data` at `offset` of an open file. Returns the number of bytes written; less than
// data.size() only after an error, which is then in errno.
size_t write_fully(int file_descriptor, std::span<const std::byte> data, uint64_t offset);

}  // namespace strata
