// GGUF files, the format of llama.cpp: reading a header through a memory map, and writing one file
// in streams. Layout: docs/format/gguf.md. Source: ggml's docs/gguf.md. Owns: bytes, names,
// alignment. Never: what a key or a tensor means, nor how values are encoded (gguf_type.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/base/file.h"
#include "strata/hf/formats/gguf_type.h"

namespace strata::hf {

// The alternatives stand in the order of the format's numbers of value types, so that index() is
// that number; arrays of arrays, which no file of a model has, are none.
using GgufArray =
    std::variant<std::vector<uint8_t>, std::vector<int8_t>, std::vector<uint16_t>,
                 std::vector<int16_t>, std::vector<uint32_t>, std::vector<int32_t>,
                 std::vector<float>, std::vector<bool>, std::vector<std::string>, std::monostate,
                 std::vector<uint64_t>, std::vector<int64_t>, std::vector<double>>;
using GgufValue = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool,
                               std::string, GgufArray, uint64_t, int64_t, double>;
// In the order of the file.
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

inline constexpr uint64_t kGgufAlignment = 32;

// `shape` is row-major as everywhere here: the last size is that of a row. The file says it the
// other way round.
struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<int64_t> shape;

  bool operator==(const GgufTensor&) const = default;
};

struct GgufTensorInfo {
  GgufTensor tensor;
  uint64_t begin = 0;  // in the file
  uint64_t size_bytes = 0;
};

// Every position and size is checked on opening: FormatError that names the file and the values;
// IoError for one that cannot be read. Versions 2 and 3, little-endian.
// Threads: any number of readers.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);

  uint32_t version() const { return version_; }
  const GgufMetadata& metadata() const { return metadata_; }
  const GgufValue* find(std::string_view key) const;  // nullptr when absent
  const std::vector<GgufTensorInfo>& tensors() const { return tensors_; }
  std::span<const std::byte> bytes(const GgufTensorInfo& info) const {
    return file_.data().subspan(info.begin, info.size_bytes);
  }

 private:
  MappedFile file_;
  uint32_t version_ = 0;
  GgufMetadata metadata_;
  std::vector<GgufTensorInfo> tensors_;
};

// Writes the header at once, then the tensors' bytes as they come, in the order of the file, which
// is that of `tensors`. The whole size is reserved on opening, so that a full disk is found before
// the first tensor. The destructor without finish() removes the file. Threads: one at a time.
// Errors: IoError; InternalError for what is no order, a name that comes twice or rows that are no
// whole number of blocks.
class GgufWriter {
 public:
  // An existing file is overwritten.
  GgufWriter(std::filesystem::path path, const GgufMetadata& metadata,
             const std::vector<GgufTensor>& tensors, FileSystem& files = real_file_system());
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  // The next bytes of the tensor, whose predecessors are complete.
  void append(std::string_view name, std::span<const std::byte> data);
  // Proves that every tensor is complete, syncs and closes the file.
  void finish();

  uint64_t file_bytes() const { return file_bytes_; }

 private:
  void lay_out(const std::vector<GgufTensor>& tensors);
  void discard() noexcept;
  void write_at(std::span<const std::byte> data, uint64_t offset);
  // Steps over tensors that are complete, with zeros up to the next one's begin.
  void close_tensor();

  std::filesystem::path path_;
  FileSystem& files_;
  std::vector<GgufTensorInfo> tensors_;
  size_t current_ = 0;
  uint64_t written_ = 0;  // of the current tensor
  uint64_t file_bytes_ = 0;
  Descriptor file_;
};

}  // namespace strata::hf
