#include "strata/base/file_system.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "strata/base/descriptor.h"
#include "strata/base/file.h"

namespace strata {

namespace fs = std::filesystem;

int FileSystem::create(const fs::path& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  return file >= 0 ? file : -errno;
}

int FileSystem::open_direct(const fs::path& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_DIRECT);
  return file >= 0 ? file : -errno;
}

int FileSystem::open_existing(const fs::path& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  return file >= 0 ? file : -errno;
}

int FileSystem::reserve(int descriptor, uint64_t size_bytes) {
  if (::fallocate(descriptor, 0, 0, static_cast<off_t>(size_bytes)) == 0) return 0;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return errno;
  // A sparse file; a full disk then shows at a later write.
  return ::ftruncate(descriptor, static_cast<off_t>(size_bytes)) == 0 ? 0 : errno;
}

size_t FileSystem::write(int descriptor, std::span<const std::byte> data, uint64_t offset) {
  return write_fully(descriptor, data, offset);
}

int FileSystem::sync(int descriptor) { return ::fsync(descriptor) == 0 ? 0 : errno; }

int FileSystem::sync_path(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return errno;
  if (::fsync(file.get()) == 0 || errno == EINVAL || errno == ENOTSUP) return 0;
  return errno;
}

int FileSystem::rename(const fs::path& from, const fs::path& to) {
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

int FileSystem::exchange(const fs::path& a, const fs::path& b) {
#ifdef RENAME_EXCHANGE
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0 ? 0 : errno;
#else
  return ENOSYS;
#endif
}

int FileSystem::make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error.value();
}

int FileSystem::remove(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error.value();
}

FileSystem& real_file_system() {
  static FileSystem files;
  return files;
}

}  // namespace strata
