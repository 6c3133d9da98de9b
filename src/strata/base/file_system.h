// The operations that change a disk, as one seam: saving code calls them here, so that a test can
// fail or cut each of them and prove what is left. Owns: no state. Never: reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace strata {

// Every call that returns int answers 0 or an errno value.
// Threads: any number at once, on different files.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates or empties a file and opens it for writing. The descriptor, or -errno.
  virtual int create(const std::filesystem::path& path);
  // A second descriptor of a file that create() made, whose writes pass the page cache by
  // (O_DIRECT); -errno where its file system cannot do that.
  virtual int open_direct(const std::filesystem::path& path);
  // The same through the page cache.
  virtual int open_existing(const std::filesystem::path& path);
  // Sets the file's size and takes the space on the disk where the file system can.
  virtual int reserve(int descriptor, uint64_t size_bytes);
  // Returns the bytes written: less than data.size() only after an error, which is then in errno.
  virtual size_t write(int descriptor, std::span<const std::byte> data, uint64_t offset);
  virtual int sync(int descriptor);
  // Of a file or a folder. File systems that cannot sync folders count as having done it.
  virtual int sync_path(const std::filesystem::path& path);
  virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to);
  // Swaps two names in one moment; ENOSYS or EINVAL where that is not possible.
  virtual int exchange(const std::filesystem::path& a, const std::filesystem::path& b);
  // With its missing parents.
  virtual int make_folder(const std::filesystem::path& path);
  // A file or a folder with its content; a missing one is no error.
  virtual int remove(const std::filesystem::path& path);
};

// The operating system's.
FileSystem& real_file_system();

}  // namespace strata
