// ZipStreamWriter: local headers without sizes, which follow each record, and a 64-bit directory.
#include <cerrno>

#include <zlib.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/write_advice.h"
#include "strata/hf/formats/zip.h"

namespace strata::hf {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kLocalBytes = 30;
// A descriptor follows the data; names are UTF-8.
constexpr uint16_t kFlags = 0x0808;

// Appends little-endian numbers.
struct Fields {
  std::string text;
  Fields& u16(uint64_t value) { return number(value, 2); }
  Fields& u32(uint64_t value) { return number(value, 4); }
  Fields& u64(uint64_t value) { return number(value, 8); }
  Fields& number(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return *this;
  }
};

}  // namespace

ZipStreamWriter::ZipStreamWriter(int descriptor, uint64_t begin, std::string top,
                                 std::string subject, FileSystem& files)
    : descriptor_(descriptor),
      begin_(begin),
      at_(begin),
      top_(std::move(top)),
      subject_(std::move(subject)),
      files_(files) {}

void ZipStreamWriter::put(std::string_view bytes) {
  const size_t written = files_.write(descriptor_, std::as_bytes(std::span(bytes)), at_);
  if (written != bytes.size()) {
    throw IoError("{}: found {} after {} bytes written, expected more room; {}", subject_,
                  errno_text(errno), at_ + written,
                  write_advice(errno, "free space or choose another folder"));
  }
  at_ += bytes.size();
}

void ZipStreamWriter::add(const std::string& name, std::string_view content) {
  begin_record(name, content.size());
  append(std::as_bytes(std::span(content)));
  end_record();
}

void ZipStreamWriter::begin_record(const std::string& name, uint64_t size) {
  const std::string path = top_ + "/" + name;
  entries_.push_back({path, at_ - begin_, size, 0});
  left_ = size;
  // The gap before aligned data is an extra field of its own.
  const uint64_t unpadded = at_ - begin_ + kLocalBytes + path.size() + 4;
  const uint64_t padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  Fields header;
  header.u32(0x04034b50).u16(0).u16(kFlags).u16(0).u16(0).u16(0).u32(0).u32(0).u32(0);
  header.u16(path.size()).u16(4 + padding);
  header.text += path;
  header.u16(0x4246).u16(padding);  // "FB"
  header.text.append(padding, 'Z');
  put(header.text);
}

void ZipStreamWriter::append(std::span<const std::byte> data) {
  if (entries_.empty() || data.size() > left_) {
    throw InternalError("{}: found {} bytes for a record with room for {}", subject_, data.size(),
                        left_);
  }
  Entry& entry = entries_.back();
  entry.crc = static_cast<uint32_t>(
      ::crc32_z(entry.crc, reinterpret_cast<const Bytef*>(data.data()), data.size()));
  left_ -= data.size();
  put({reinterpret_cast<const char*>(data.data()), data.size()});
}

void ZipStreamWriter::end_record() {
  if (left_ != 0) throw InternalError("{}: found {} bytes missing in a record", subject_, left_);
  const Entry& entry = entries_.back();
  Fields descriptor;
  descriptor.u32(0x08074b50).u32(entry.crc);
  if (entry.size >= 0xffffffff) {
    descriptor.u64(entry.size).u64(entry.size);
  } else {
    descriptor.u32(entry.size).u32(entry.size);
  }
  put(descriptor.text);
}

uint64_t ZipStreamWriter::finish() {
  const uint64_t directory = at_ - begin_;
  for (const Entry& entry : entries_) {
    const bool is_large = entry.size >= 0xffffffff || entry.offset >= 0xffffffff;
    Fields fields;
    fields.u32(0x02014b50).u16(0).u16(is_large ? 45 : 0).u16(kFlags).u16(0).u16(0).u16(0);
    fields.u32(entry.crc);
    fields.u32(is_large ? 0xffffffff : entry.size).u32(is_large ? 0xffffffff : entry.size);
    fields.u16(entry.name.size()).u16(is_large ? 28 : 0).u16(0).u16(0).u16(0).u32(0);
    fields.u32(is_large ? 0xffffffff : entry.offset);
    fields.text += entry.name;
    if (is_large) fields.u16(1).u16(24).u64(entry.size).u64(entry.size).u64(entry.offset);
    put(fields.text);
  }
  const uint64_t end64 = at_ - begin_;
  const uint64_t size = end64 - directory;
  const uint64_t count = entries_.size();
  Fields end;
  if (directory >= 0xffffffff || count >= 0xffff) {
    end.u32(0x06064b50).u64(44).u16(45).u16(45).u32(0).u32(0);
    end.u64(count).u64(count).u64(size).u64(directory);
    end.u32(0x07064b50).u32(0).u64(end64).u32(1);
  }
  end.u32(0x06054b50).u16(0).u16(0);
  end.u16(std::min<uint64_t>(count, 0xffff)).u16(std::min<uint64_t>(count, 0xffff));
  end.u32(std::min<uint64_t>(size, 0xffffffff)).u32(std::min<uint64_t>(directory, 0xffffffff));
  end.u16(0);
  put(end.text);
  return at_;
}

}  // namespace strata::hf
