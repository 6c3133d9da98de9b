// A file of the Hub's cache while it comes: its bytes on disk, and whether they are the announced
// ones. Owns: the open file. Never: asks the Hub, or decides what becomes of a bad file.
#pragma once

#include <openssl/evp.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace strata::hf {

// The hash that an ETag names: SHA-256 of large files, git's SHA-1 of small ones.
class BlobChecksum {
 public:
  // `size`: of the whole file, in bytes.
  BlobChecksum(const std::string& etag, int64_t size);

  void add(std::string_view bytes);
  // True as well for an ETag that is no hash. To be called once.
  bool fits();

 private:
  std::string expected_;
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
  bool known_ = false;
};

// The bytes of a download as they come, at the end of what is there already. Throws IoError.
class IncompleteFile {
 public:
  explicit IncompleteFile(std::filesystem::path path);
  ~IncompleteFile();
  IncompleteFile(const IncompleteFile&) = delete;
  IncompleteFile& operator=(const IncompleteFile&) = delete;

  int64_t size() const { return size_; }
  void clear();
  void append(std::span<const char> bytes);

 private:
  std::filesystem::path path_;
  int file_;
  int64_t size_ = 0;
};

}  // namespace strata::hf
