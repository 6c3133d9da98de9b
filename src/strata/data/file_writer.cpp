#include "strata/data/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/hf/hub_cache.h"

namespace strata::data {

std::filesystem::path scratch_path() { return hf::hf_home() / "strata" / "scratch"; }

FileWriter::FileWriter(std::filesystem::path path)
    : path_(std::move(path)),
      file_(::open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644)) {
  if (file_.get() < 0) throw IoError("{}: {}", path_.string(), errno_text(errno));
}

void FileWriter::write(uint64_t offset, std::span<const std::byte> bytes) {
  if (write_fully(file_.get(), bytes, offset) != bytes.size()) {
    throw IoError("{}: {}", path_.string(), errno_text(errno));
  }
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
  if (::fsync(file_.get()) != 0) throw IoError("{}: {}", path_.string(), errno_text(errno));
}

}  // namespace strata::data
