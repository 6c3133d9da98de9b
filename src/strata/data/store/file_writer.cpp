#include "strata/data/store/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/hf/hub/cache.h"

namespace strata::data {

std::filesystem::path scratch_path() { return hf::hf_home() / "strata" / "scratch"; }

FileWriter::FileWriter(const std::filesystem::path& path, std::string subject)
    : subject_(std::move(subject)),
      file_(::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644)) {
  if (file_.get() >= 0) return;
  throw IoError("{}: found {}, expected a file to write; check the folder and its permissions",
                subject_, errno_text(errno));
}

FileWriter::FileWriter(const std::filesystem::path& path) : FileWriter(path, path.string()) {}

FileWriter::FileWriter(const ScratchFile& file) : FileWriter(file.path(), file.folder().string()) {
  scratch_ = file.descriptor();
}

bool FileWriter::move_to_another_disk() {
  if (scratch_ < 0) return false;
  const std::filesystem::path folder = move_to_temporary_folder(scratch_, at_);
  if (folder.empty()) return false;
  file_ = Descriptor(::fcntl(scratch_, F_DUPFD_CLOEXEC, 0));
  subject_ = folder.string();
  return true;
}

void FileWriter::write(uint64_t offset, std::span<const std::byte> bytes) {
  size_t written = write_fully(file_.get(), bytes, offset);
  if (written == bytes.size()) return;
  const int error = errno;
  if ((error == ENOSPC || error == EDQUOT) && move_to_another_disk()) {
    written = write_fully(file_.get(), bytes, offset);
    if (written == bytes.size()) return;
  } else {
    errno = error;
  }
  throw IoError(
      "{}: found {} after {} bytes of prepared data, expected room for all of them; free space "
      "there or set HF_HOME to a folder with more",
      subject_, errno_text(errno), offset + written);
}

void FileWriter::flush() {
  write(at_, std::as_bytes(std::span<const char>(buffer_)));
  at_ += buffer_.size();
  buffer_.clear();
}

void FileWriter::overwrite(uint64_t offset, std::span<const std::byte> bytes) {
  flush();
  write(offset, bytes);
}

void FileWriter::sync() {
  flush();
  if (::fsync(file_.get()) == 0) return;
  throw IoError("{}: found {} when syncing, expected its content on the disk; check the disk",
                subject_, errno_text(errno));
}

}  // namespace strata::data
