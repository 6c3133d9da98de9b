// Folders of torch.distributed.checkpoint, format "1.0.0": `.metadata`, a pickle that says where
// each block of each tensor lies, and `.distcp` files, which are torch.save archives one after the
// other. Never: what a tensor's name means.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/base/file.h"
#include "strata/hf/formats/torch_file.h"

namespace strata::hf {

// Where an archive lies: bytes [offset, offset + length) of a file of the folder.
struct DcpPlace {
  std::string file;
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Elements [offsets, offsets + sizes) of the tensor.
struct DcpBlock {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;
  DcpPlace place;
};

struct DcpTensor {
  std::string name;               // "optimizer.state.lm_head.weight.exp_avg"
  std::vector<std::string> path;  // {"optimizer", "state", "lm_head.weight", "exp_avg"}
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<DcpBlock> blocks;  // tile the tensor

  uint64_t size_bytes() const;
};

// A value that is no tensor.
struct DcpItem {
  std::string name;
  std::vector<std::string> path;
  DcpPlace place;
};

// Whether the folder has a `.metadata`.
bool is_dcp_folder(const std::filesystem::path& folder);

// Every rule is checked on opening, except for the archives, which are checked as they are read.
// Errors: FormatError for broken or refused content, IoError for missing files. Threads: one.
class DcpFolder {
 public:
  explicit DcpFolder(const std::filesystem::path& folder);

  const std::vector<DcpTensor>& tensors() const { return tensors_; }
  const std::vector<DcpItem>& items() const { return items_; }
  const std::filesystem::path& path() const { return folder_; }

  // The whole tensor in row-major order. Requires: out.size() == tensor.size_bytes().
  void read(const DcpTensor& tensor, std::span<std::byte> out);
  // The number an item holds; nothing for another value.
  std::optional<double> number(const DcpItem& item);
  // Proves the checksums of every archive. Returns how many tensors have none to prove.
  size_t verify();

 private:
  std::span<const std::byte> bytes(const DcpPlace& place);

  std::filesystem::path folder_;
  std::vector<DcpTensor> tensors_;
  std::vector<DcpItem> items_;
  std::map<std::string, std::unique_ptr<MappedFile>> files_;
};

struct DcpTensorSpec {
  std::vector<std::string> path;
  DType dtype;
  std::vector<int64_t> shape;
};

// Writes a folder with one data file. `.metadata` comes last: without it there is no checkpoint.
// Threads: one. Errors: IoError.
class DcpWriter {
 public:
  DcpWriter(std::filesystem::path folder, FileSystem& files = real_file_system());

  void add_value(const std::vector<std::string>& path, const PyValue& value);
  void add_tensor(const DcpTensorSpec& spec, std::span<const std::byte> data);
  void finish();

 private:
  struct Entry {
    std::vector<std::string> path;
    std::optional<DcpTensorSpec> tensor;
    uint64_t offset;
    uint64_t length;
  };
  std::string metadata() const;

  std::filesystem::path folder_;
  FileSystem& files_;
  Descriptor file_;
  uint64_t at_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace strata::hf
