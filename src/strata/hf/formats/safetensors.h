// Safetensors files: reading one through a memory map, and writing one in streams.
// Layout: u64 little-endian header length, JSON header, data. Source: the safetensors format page.
// Never: tensors of a library, nor conversions of element types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/base/file.h"
#include "strata/base/write_stream.h"
#include "strata/hf/dtype.h"

namespace strata::hf {

// `begin` and `end` are bytes in the file's data area, after the header.
struct TensorInfo {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;

  int64_t numel() const;  // 1 for a scalar
  uint64_t size_bytes() const { return end - begin; }
};

// Every rule of the format is checked on open; each broken one is a FormatError that names the
// file, the tensor and the values. A missing or unreadable file is an IoError. Invariants:
// tensors() tile the data area without gap or overlap. Threads: any number of readers.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  // In the order of the data area.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;  // nullptr when absent
  // The tensor's bytes in the map. They may be unaligned for the type: copy before casting.
  // Requires: `info` is from this file.
  std::span<const std::byte> bytes(const TensorInfo& info) const;
  // Where the tensor's bytes begin in the file. Requires: `info` is from this file.
  uint64_t file_offset(const TensorInfo& info) const;
  // The `__metadata__` entry, empty when absent.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return file_.path(); }
  // Calls every tensor what `name_of` makes of its name, here and not in the file. Call it before
  // anything is asked by its name.
  void rename(const std::function<std::string(const std::string&)>& name_of);

 private:
  void index();

  MappedFile file_;
  std::span<const std::byte> data_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, size_t> places_;  // views into tensors_' names
  std::map<std::string, std::string> metadata_;
};

struct TensorSpec {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
};

// Writes the header at once, then data as it comes, in any order. The bytes equal the reference
// writer's: tensors by layout_rank, then name; the header padded with spaces to a multiple of 8.
// The whole size is reserved on opening, so that a full disk is found before the first tensor.
// The destructor without finish() removes the file. Threads: one at a time.
class SafetensorsWriter {
 public:
  // An existing file is overwritten. Metadata may be empty: then the header has none.
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> specs,
                    std::map<std::string, std::string> metadata = {{"format", "pt"}},
                    FileSystem& files = real_file_system());
  // For a file that several processes fill together: one of them creates it with its header and its
  // full size, then each of them joins and writes tensors or parts of them. finish() then says
  // nothing of what the others wrote, and the destructor leaves the file.
  static void create_shared(const std::filesystem::path& path, std::vector<TensorSpec> specs,
                            std::map<std::string, std::string> metadata,
                            FileSystem& files = real_file_system());
  static std::unique_ptr<SafetensorsWriter> join(const std::filesystem::path& path,
                                                 FileSystem& files = real_file_system());
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // From now on writes go past the page cache, in the background, by two blocks of memory
  // (base/write_stream.h): for much data that comes in the order of the file. An error of one shows
  // at a later one or at finish().
  void stream(size_t block_bytes = WriteStream::kBlockBytes);
  // Writes `data` at `offset_bytes` from the start of the tensor.
  void write(std::string_view name, std::span<const std::byte> data, uint64_t offset_bytes = 0);
  // Checks that every byte of every tensor was written, syncs and closes the file.
  void finish();

  // In layout order.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void lay_out(std::vector<TensorSpec> specs);
  SafetensorsWriter(std::filesystem::path path, FileSystem& files);  // joins
  [[noreturn]] void fail_write(int error_number, uint64_t written) const;
  void write_at(std::span<const std::byte> data, uint64_t offset);
  void note_written(size_t tensor, uint64_t begin, uint64_t end);
  void discard() noexcept;

  std::filesystem::path path_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, size_t> places_;
  std::vector<std::map<uint64_t, uint64_t>> written_;  // per tensor: disjoint ranges begin -> end
  uint64_t data_begin_ = 0;
  uint64_t file_bytes_ = 0;
  bool is_shared_ = false;
  FileSystem& files_;
  Descriptor file_;
  Descriptor direct_;
  std::optional<WriteStream> stream_;  // after the descriptors, which it uses
};

}  // namespace strata::hf
