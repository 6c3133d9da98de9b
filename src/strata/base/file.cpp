#include "strata/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/base/error.h"
#include "strata/base/probe_file.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_unreadable(const fs::path& path, int error_number) {
  throw IoError("{}: found {}, expected a readable file; check the path and its permissions",
                path.string(), errno_text(error_number));
}

// What `git clone` leaves in place of large files where Git LFS is not installed: a text of some
// lines. No file that is read here begins so.
void refuse_lfs_pointer(const fs::path& path, int descriptor) {
  constexpr std::string_view kBeginning = "version https://git-lfs.github.com/spec/";
  char text[kBeginning.size()];
  const ssize_t read = ::pread(descriptor, text, sizeof(text), 0);
  if (read < 0 || std::string_view(text, static_cast<size_t>(read)) != kBeginning) return;
  throw IoError(
      "{}: found a pointer of Git LFS, expected the file itself; run git lfs pull in the "
      "repository, or download the file",
      path.string());
}

// Opens for reading and refuses everything but regular files. O_NONBLOCK: a named pipe without a
// writer must be an error, not a hang.
Descriptor open_regular(const fs::path& path, size_t* size_bytes) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) throw_unreadable(path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_unreadable(path, errno);
  if (S_ISDIR(status.st_mode)) {
    throw IoError("{}: found a folder, expected a file; name a file inside it", path.string());
  }
  if (!S_ISREG(status.st_mode)) {
    throw IoError("{}: found a device or pipe, expected a regular file; copy it to a file first",
                  path.string());
  }
  *size_bytes = static_cast<size_t>(status.st_size);
  constexpr off_t kLongestPointer = 1024;  // by the specification of Git LFS
  if (status.st_size < kLongestPointer) refuse_lfs_pointer(path, file.get());
  return file;
}

// Read-only. File systems that keep no pages that others share (FUSE with direct_io, as cloud
// storage is often mounted) refuse a shared map and give a private one.
void* map_for_reading(int descriptor, size_t size_bytes) {
  void* address = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  if (address != MAP_FAILED || errno != ENODEV) return address;
  return ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
}

}  // namespace

std::string errno_text(int error_number) {
  std::string text = std::generic_category().message(error_number);
  if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return text;
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  size_t size_bytes = 0;
  const Descriptor file = open_regular(path, &size_bytes);
  if (size_bytes == 0) return;  // mmap refuses a length of zero
  void* address = map_for_reading(file.get(), size_bytes);
  if (address == MAP_FAILED && errno == ENOMEM) {
    throw OutOfMemoryError(
        "{}: found no room for {} bytes in the address space, expected it to be mapped; raise that "
        "limit (ulimit -v unlimited) or the number of mappings (vm.max_map_count)",
        path.string(), size_bytes);
  }
  if (address == MAP_FAILED) {
    throw IoError(
        "{}: found {} when mapping {} bytes, expected a mappable file; copy it to a local "
        "file system",
        path.string(), errno_text(errno), size_bytes);
  }
  data_ = {static_cast<const std::byte*>(address), size_bytes};
}

MappedFile::~MappedFile() { unmap(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, {});
  }
  return *this;
}

void MappedFile::unmap() noexcept {
  if (!data_.empty()) ::munmap(const_cast<std::byte*>(data_.data()), data_.size());
  data_ = {};
}

void forget_pages(std::span<const std::byte> mapped) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(mapped.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(mapped.data() + mapped.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

std::string read_file(const fs::path& path) {
  size_t size_bytes = 0;
  const Descriptor file = open_regular(path, &size_bytes);
  // One byte more than the size says, so that the loop sees the end without another growth. Files
  // of /proc say zero: the loop does not rely on the size.
  std::string content(size_bytes + 1, '\0');
  size_t filled = 0;
  while (true) {
    const ssize_t count = ::read(file.get(), content.data() + filled, content.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_unreadable(path, errno);
    if (count == 0) break;
    filled += static_cast<size_t>(count);
    if (filled == content.size()) content.resize(content.size() * 2);
  }
  content.resize(filled);
  return content;
}

size_t write_fully(int file_descriptor, std::span<const std::byte> data, uint64_t offset) {
  size_t written = 0;
  while (written < data.size()) {
    const ssize_t count = ::pwrite(file_descriptor, data.data() + written, data.size() - written,
                                   static_cast<off_t>(offset + written));
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = EIO;  // no error and no progress: do not spin
    if (count <= 0) break;
    written += static_cast<size_t>(count);
  }
  return written;
}

int make_durable_folders(const fs::path& path, FileSystem& files) {
  std::vector<fs::path> holders;  // of new names
  std::error_code ignored;
  for (fs::path at = (fs::absolute(path) / "").parent_path(); !fs::exists(at, ignored);) {
    const fs::path parent = at.parent_path();
    if (parent == at) break;
    holders.push_back(parent);
    at = parent;
  }
  if (holders.empty() && fs::is_directory(path)) return 0;
  if (const int error = files.make_folder(path)) return error;
  for (const fs::path& holder : holders) {
    const int error = files.sync_path(holder);
    // One that may be written to and not be read cannot be synced.
    if (error != 0 && error != EACCES) return error;
  }
  return 0;
}

void fsync_path(const fs::path& path, FileSystem& files) {
  const int error = files.sync_path(path);
  if (error == 0) return;
  throw IoError("{}: found {} when syncing, expected its content on the disk; check the disk",
                path.string(), errno_text(error));
}

uint64_t available_bytes(const fs::path& path) {
  std::error_code error;
  fs::path existing = fs::absolute(path, error);
  while (!existing.empty() && existing != existing.root_path() && !fs::exists(existing, error)) {
    existing = existing.parent_path();
  }
  const fs::space_info info = fs::space(existing, error);
  if (error) {
    throw IoError(
        "{}: found {} when asking for free space, expected a mounted file system; check "
        "the path",
        path.string(), errno_text(error.value()));
  }
  return info.available;
}

void require_writable_folder(const fs::path& path) {
  std::error_code ignored;
  // The folder or one that it lies in.
  for (fs::path at = path; at.has_relative_path() && !fs::exists(at, ignored);
       at = at.parent_path()) {
    if (!fs::is_symlink(at, ignored)) continue;
    throw IoError(
        "{}: found a link to {}, which is not there, expected a folder to write to; create that "
        "folder or choose another",
        at.string(), fs::read_symlink(at, ignored).string());
  }
  const int error = make_durable_folders(path);
  if (error != 0 || !fs::is_directory(path)) {
    throw IoError(
        "{}: found {} when creating it, expected a folder to write to; choose another "
        "folder",
        path.string(), errno_text(error != 0 ? error : ENOTDIR));
  }
  const ProbeFile file(path);
  // A quota that is used up lets files be made and nothing be written to them.
  const bool is_written = write_fully(file.get(), std::as_bytes(std::span("", 1)), 0) == 1;
  const int error_number = errno;
  if (is_written) return;
  throw IoError(
      "{}: found {} when writing to a file in it, expected a folder with room; free space there or "
      "choose another",
      path.string(), errno_text(error_number));
}

}  // namespace strata
