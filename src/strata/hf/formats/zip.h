// Zip archives of stored records, as torch.save writes them: reading from memory, writing in
// streams. Source: PKWARE's APPNOTE (with the 64-bit extensions) and libtorch's inline_container.
// Never: compression, nor what a record means.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "strata/base/file_system.h"

namespace strata::hf {

struct ZipRecord {
  std::string name;
  std::span<const std::byte> data;
  uint32_t crc32 = 0;
};

// Every position is checked against the archive's size; each broken rule is a FormatError that
// starts with `subject`. Checksums are proved by verify(), not on opening.
// Threads: any number of readers.
class ZipArchive {
 public:
  // Requires: `bytes` outlive the archive.
  ZipArchive(std::span<const std::byte> bytes, std::string subject);

  const std::vector<ZipRecord>& records() const { return records_; }
  // By the name after the archive's top folder ("data.pkl", "data/0"); nullptr when absent.
  const ZipRecord* find(std::string_view name) const;
  // Whether it was written with checksums; torch.serialization.set_crc32_options(False) leaves all
  // of them 0.
  bool has_checksums() const { return has_checksums_; }
  // Throws FormatError unless the record's bytes have its checksum, where there are any.
  void verify(const ZipRecord& record) const;

 private:
  std::string subject_;
  bool has_checksums_ = false;
  std::vector<ZipRecord> records_;
  std::unordered_map<std::string, size_t> places_;
};

// Appends an archive to an open file, record by record; each record's data starts at a multiple of
// 64 bytes from the archive's start, as torch's reader expects of its own files.
// Threads: one. Errors: IoError.
class ZipStreamWriter {
 public:
  // `descriptor` stays the caller's. `begin`: where the archive starts in the file. `top`: the
  // folder that all names are under.
  ZipStreamWriter(int descriptor, uint64_t begin, std::string top, std::string subject,
                  FileSystem& files = real_file_system());

  void add(const std::string& name, std::string_view content);
  // A record of `size` bytes that come in pieces.
  void begin_record(const std::string& name, uint64_t size);
  void append(std::span<const std::byte> data);
  void end_record();
  // Writes the directory. Returns the position after the archive.
  uint64_t finish();

 private:
  struct Entry {
    std::string name;
    uint64_t offset, size;
    uint32_t crc;
  };
  void put(std::string_view bytes);

  int descriptor_;
  uint64_t begin_;
  uint64_t at_;
  std::string top_;
  std::string subject_;
  FileSystem& files_;
  std::vector<Entry> entries_;
  uint64_t left_ = 0;
};

}  // namespace strata::hf
