// Files of torch.save (a zip of a pickle and of raw storages): reading tensors and plain values,
// writing trees of both. Source: torch.serialization, torch._utils. Never: runs a pickle's calls.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "strata/hf/dtype.h"
#include "strata/hf/formats/pickle.h"
#include "strata/hf/formats/zip.h"

namespace strata::hf {

// Whether a file of torch.save may name this global ("torch FloatStorage").
bool is_torch_global(std::string_view global);

// A view into a storage. Strides and offset are in elements.
struct TorchTensor {
  std::vector<std::string> path;  // its keys from the root: {"state", "lm_head.weight", "exp_avg"}
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int64_t offset = 0;
  const ZipRecord* storage = nullptr;

  int64_t numel() const;
  uint64_t size_bytes() const;
};

// A number, text or None that is no tensor.
struct TorchScalar {
  std::vector<std::string> path;
  std::optional<double> number;  // of ints, floats and bools
};

// Throws FormatError that starts with `subject` for everything that is not tensors, containers,
// numbers and text, and for views that reach out of their storage.
// Requires: `bytes` outlive the file. Threads: any number of readers.
class TorchFile {
 public:
  TorchFile(std::span<const std::byte> bytes, const std::string& subject);

  const std::vector<TorchTensor>& tensors() const { return tensors_; }
  const std::vector<TorchScalar>& scalars() const { return scalars_; }
  // The tensor's elements in row-major order. Requires: out.size() == tensor.size_bytes().
  void read(const TorchTensor& tensor, std::span<std::byte> out) const;
  // False: it was saved without any, and what follows proves nothing.
  bool has_checksums() const { return archive_.has_checksums(); }
  // Proves the checksum of every record.
  void verify() const;
  // Of those that a tensor is made of: its storage, which views may share, and the pickle.
  void verify(const TorchTensor& tensor);

 private:
  void walk(const Pickle& pickle, PickleRef ref, std::vector<std::string>& path);
  void add_items(const Pickle& pickle, const PickleNode& dict, std::vector<std::string>& path);
  void add_tensor(const Pickle& pickle, const PickleNode& call, std::vector<std::string> path);
  void check_view(const TorchTensor& tensor) const;

  std::string subject_;
  ZipArchive archive_;
  std::set<const ZipRecord*> proved_ = {};
  size_t values_left_ = 0;  // while walking
  std::vector<TorchTensor> tensors_;
  std::vector<TorchScalar> scalars_;
};

// What is written: a Python value whose tensors are numbers of a list.
struct PyItem;
using PyItems = std::vector<PyItem>;  // a dict, in order
struct PyValue;
struct PyTensor {
  size_t index;
};
struct PyList {
  std::vector<PyValue> items;
  bool is_tuple = false;
};
struct PyValue {
  std::variant<std::monostate, bool, int64_t, double, std::string, PyTensor, PyList, PyItems> value;
};
struct PyItem {
  std::string key;
  PyValue value;
};

struct TorchTensorSpec {
  DType dtype;
  std::vector<int64_t> shape;

  uint64_t size_bytes() const;
};

// Writes one torch.save archive into an open file, its tensors' data in the order of `tensors`.
// Throws ConfigError for a type that torch stores in another way.
class TorchFileWriter {
 public:
  TorchFileWriter(int descriptor, uint64_t begin, const std::string& subject, const PyValue& root,
                  std::vector<TorchTensorSpec> tensors, FileSystem& files = real_file_system());

  // All bytes of the next tensor.
  void write(std::span<const std::byte> data);
  // Returns the position after the archive. Requires: every tensor was written.
  uint64_t finish();

 private:
  ZipStreamWriter zip_;
  std::vector<TorchTensorSpec> tensors_;
  size_t next_ = 0;
};

}  // namespace strata::hf
