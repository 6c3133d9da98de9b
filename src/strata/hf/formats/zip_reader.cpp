// ZipArchive: the central directory, every number of it distrusted.
#include <algorithm>

#include <zlib.h>

#include "strata/base/error.h"
#include "strata/hf/formats/zip.h"

namespace strata::hf {
namespace {

constexpr uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50,
                   kLocator64Signature = 0x07064b50, kEntrySignature = 0x02014b50,
                   kLocalSignature = 0x04034b50;
constexpr uint64_t kEndBytes = 22, kLocator64Bytes = 20, kEnd64Bytes = 56, kEntryBytes = 46,
                   kLocalBytes = 30;
constexpr uint64_t kMaxComment = 0xffff;
constexpr uint32_t kAsk64 = 0xffffffff;

// Little-endian numbers at positions that are checked.
class Bytes {
 public:
  Bytes(std::span<const std::byte> data, const std::string& subject)
      : data_(data), subject_(subject) {}

  uint64_t size() const { return data_.size(); }
  template <typename T>
  T number(uint64_t at) const {
    const std::span<const std::byte> bytes = range(at, sizeof(T));
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value | (static_cast<T>(std::to_integer<T>(bytes[i])) << (8 * i)));
    }
    return value;
  }
  std::span<const std::byte> range(uint64_t at, uint64_t length) const {
    if (at > data_.size() || length > data_.size() - at) {
      throw FormatError(
          "{}: found a zip record of {} bytes at {}, expected it within the {} bytes of the "
          "archive; the file is truncated or damaged, fetch it again",
          subject_, length, at, data_.size());
    }
    return data_.subspan(at, length);
  }
  std::string_view text(uint64_t at, uint64_t length) const {
    const auto bytes = range(at, length);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> data_;
  const std::string& subject_;
};

struct Directory {
  uint64_t offset, size, count;
};

uint64_t find_end(const Bytes& bytes, const std::string& subject) {
  if (bytes.size() >= kEndBytes) {
    const uint64_t first = bytes.size() - std::min(bytes.size(), kEndBytes + kMaxComment);
    for (uint64_t at = bytes.size() - kEndBytes;; --at) {
      if (bytes.number<uint32_t>(at) == kEndSignature) return at;
      if (at == first) break;
    }
  }
  throw FormatError(
      "{}: found no end of a zip archive, expected a file of torch.save (since torch 1.6); the "
      "file "
      "is truncated or older, save it again",
      subject);
}

Directory find_directory(const Bytes& bytes, const std::string& subject) {
  const uint64_t end = find_end(bytes, subject);
  Directory directory{bytes.number<uint32_t>(end + 16), bytes.number<uint32_t>(end + 12),
                      bytes.number<uint16_t>(end + 10)};
  const bool has_64 = end >= kLocator64Bytes &&
                      bytes.number<uint32_t>(end - kLocator64Bytes) == kLocator64Signature;
  if (has_64) {
    const auto at = bytes.number<uint64_t>(end - kLocator64Bytes + 8);
    bytes.range(at, kEnd64Bytes);
    if (bytes.number<uint32_t>(at) != kEnd64Signature) {
      throw FormatError("{}: found no 64-bit end record at {}, expected one; the file is damaged",
                        subject, at);
    }
    directory = {bytes.number<uint64_t>(at + 48), bytes.number<uint64_t>(at + 40),
                 bytes.number<uint64_t>(at + 32)};
  }
  bytes.range(directory.offset, directory.size);
  if (directory.count > directory.size / kEntryBytes) {
    throw FormatError(
        "{}: found {} records in a directory of {} bytes, expected fewer; the file "
        "is damaged",
        subject, directory.count, directory.size);
  }
  return directory;
}

struct Sizes {
  uint64_t packed, size, offset;
};

// The 64-bit values stand in an extra field, in this order, for those that do not fit.
void read_extra(const Bytes& bytes, uint64_t at, uint64_t length, Sizes& sizes) {
  bytes.range(at, length);
  const uint64_t end = at + length;
  while (end - at >= 4) {
    const auto id = bytes.number<uint16_t>(at);
    const uint64_t field_end = std::min<uint64_t>(at + 4 + bytes.number<uint16_t>(at + 2), end);
    at += 4;
    if (id == 1) {
      for (uint64_t* value : {&sizes.size, &sizes.packed, &sizes.offset}) {
        if (*value != kAsk64 || field_end - at < 8) continue;
        *value = bytes.number<uint64_t>(at);
        at += 8;
      }
    }
    at = field_end;
  }
}

}  // namespace

ZipArchive::ZipArchive(std::span<const std::byte> data, std::string subject)
    : subject_(std::move(subject)) {
  const Bytes bytes(data, subject_);
  const Directory directory = find_directory(bytes, subject_);
  uint64_t at = directory.offset;
  for (uint64_t i = 0; i < directory.count; ++i) {
    if (bytes.number<uint32_t>(at) != kEntrySignature) {
      throw FormatError("{}: found no directory entry at {}, expected one; the file is damaged",
                        subject_, at);
    }
    Sizes sizes{bytes.number<uint32_t>(at + 20), bytes.number<uint32_t>(at + 24),
                bytes.number<uint32_t>(at + 42)};
    const uint64_t name_length = bytes.number<uint16_t>(at + 28);
    const uint64_t extra_length = bytes.number<uint16_t>(at + 30);
    std::string name(bytes.text(at + kEntryBytes, name_length));
    read_extra(bytes, at + kEntryBytes + name_length, extra_length, sizes);
    if (bytes.number<uint16_t>(at + 10) != 0 || sizes.packed != sizes.size) {
      throw FormatError(
          "{}: found the compressed record \"{}\", expected stored records as "
          "torch.save writes; save it again without compression",
          subject_, name);
    }
    if (bytes.number<uint32_t>(sizes.offset) != kLocalSignature) {
      throw FormatError(
          "{}: found no record \"{}\" at {}, expected its header; the file is damaged", subject_,
          name, sizes.offset);
    }
    const uint64_t data_at = sizes.offset + kLocalBytes +
                             bytes.number<uint16_t>(sizes.offset + 26) +
                             bytes.number<uint16_t>(sizes.offset + 28);
    const size_t slash = name.find('/');
    places_.emplace(slash == std::string::npos ? name : name.substr(slash + 1), records_.size());
    records_.push_back(
        {std::move(name), bytes.range(data_at, sizes.size), bytes.number<uint32_t>(at + 16)});
    has_checksums_ |= records_.back().crc32 != 0;
    at += kEntryBytes + name_length + extra_length + bytes.number<uint16_t>(at + 32);
  }
}

const ZipRecord* ZipArchive::find(std::string_view name) const {
  const auto found = places_.find(std::string(name));
  return found == places_.end() ? nullptr : &records_[found->second];
}

void ZipArchive::verify(const ZipRecord& record) const {
  if (!has_checksums_) return;
  const auto found = static_cast<uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(record.data.data()), record.data.size()));
  if (found == record.crc32) return;
  throw FormatError(
      "{}: record \"{}\": found the checksum {:08x}, expected {:08x}; the file is damaged, fetch "
      "it "
      "again",
      subject_, record.name, found, record.crc32);
}

}  // namespace strata::hf
