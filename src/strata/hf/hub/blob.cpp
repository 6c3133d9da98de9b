#include "strata/hf/hub/blob.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::hf {

BlobChecksum::BlobChecksum(const std::string& etag, int64_t size)
    : expected_(etag), context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  const bool is_large = etag.size() == 64;
  if (!is_large && etag.size() != 40) return;
  if (etag.find_first_not_of("0123456789abcdef") != std::string::npos) return;
  if (!context_) throw OutOfMemoryError("openssl: found no memory");
  known_ = true;
  EVP_DigestInit_ex(context_.get(), is_large ? EVP_sha256() : EVP_sha1(), nullptr);
  if (!is_large) add(fmt::format("blob {}", size) + '\0');
}

void BlobChecksum::add(std::string_view bytes) {
  if (known_) EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
}

bool BlobChecksum::fits() {
  if (!known_) return true;
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  EVP_DigestFinal_ex(context_.get(), digest.data(), &size);
  std::string found;
  for (unsigned int i = 0; i < size; ++i) found += fmt::format("{:02x}", digest[i]);
  return found == expected_;
}

IncompleteFile::IncompleteFile(std::filesystem::path path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644)) {
  if (file_ < 0) throw IoError("{}: {}", path_.string(), errno_text(errno));
  size_ = static_cast<int64_t>(std::filesystem::file_size(path_));
}

IncompleteFile::~IncompleteFile() { ::close(file_); }

void IncompleteFile::clear() {
  if (::ftruncate(file_, 0) != 0) throw IoError("{}: {}", path_.string(), errno_text(errno));
  size_ = 0;
}

void IncompleteFile::append(std::span<const char> bytes) {
  if (write_fully(file_, std::as_bytes(bytes), static_cast<uint64_t>(size_)) != bytes.size()) {
    throw IoError("{}: {}", path_.string(), errno_text(errno));
  }
  size_ += static_cast<int64_t>(bytes.size());
}

}  // namespace strata::hf
