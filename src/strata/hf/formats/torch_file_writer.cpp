// TorchFileWriter: the pickle first, then the storages.
#include "strata/base/error.h"
#include "strata/hf/formats/torch_file.h"
#include "strata/hf/formats/torch_types.h"

namespace strata::hf {
namespace {

void put_sizes(PickleWriter& out, const std::vector<int64_t>& sizes) {
  out.mark();
  for (int64_t size : sizes) out.integer(size);
  out.tuple();
}

std::vector<int64_t> row_major(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

void put_tensor(PickleWriter& out, size_t index, const TorchTensorSpec& spec) {
  out.global("torch._utils", "_rebuild_tensor_v2").mark();
  out.mark().text("storage").global("torch", torch_storage_of(spec.dtype));
  out.text(std::to_string(index)).text("cpu");
  out.integer(static_cast<int64_t>(spec.size_bytes() / size_of(spec.dtype))).tuple().persistent();
  out.integer(0);
  put_sizes(out, spec.shape);
  put_sizes(out, row_major(spec.shape));
  out.boolean(false).global("collections", "OrderedDict").empty_tuple().reduce();
  out.tuple().reduce();
}

void put(PickleWriter& out, const PyValue& tree, const std::vector<TorchTensorSpec>& tensors) {
  struct Visitor {
    PickleWriter& out;
    const std::vector<TorchTensorSpec>& tensors;
    void operator()(std::monostate) const { out.none(); }
    void operator()(bool value) const { out.boolean(value); }
    void operator()(int64_t value) const { out.integer(value); }
    void operator()(double value) const { out.real(value); }
    void operator()(const std::string& value) const { out.text(value); }
    void operator()(PyTensor tensor) const { put_tensor(out, tensor.index, tensors[tensor.index]); }
    void operator()(const PyList& list) const {
      if (!list.is_tuple) out.empty_list();
      out.mark();
      for (const PyValue& item : list.items) put(out, item, tensors);
      list.is_tuple ? out.tuple() : out.append_all();
    }
    void operator()(const PyItems& items) const {
      out.empty_dict().mark();
      for (const auto& [key, item] : items) {
        out.text(key);
        put(out, item, tensors);
      }
      out.set_items();
    }
  };
  std::visit(Visitor{out, tensors}, tree.value);
}

}  // namespace

uint64_t TorchTensorSpec::size_bytes() const {
  uint64_t bytes = size_of(dtype);
  for (int64_t size : shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

TorchFileWriter::TorchFileWriter(int descriptor, uint64_t begin, const std::string& subject,
                                 const PyValue& root, std::vector<TorchTensorSpec> tensors,
                                 FileSystem& files)
    : zip_(descriptor, begin, "archive", subject, files), tensors_(std::move(tensors)) {
  for (const TorchTensorSpec& spec : tensors_) {
    if (!torch_storage_of(spec.dtype).empty()) continue;
    throw ConfigError(
        "{}: found a tensor of type {}, expected one that torch.save files of this "
        "version hold; convert to safetensors instead",
        subject, name_of(spec.dtype));
  }
  PickleWriter tree;
  put(tree, root, tensors_);
  zip_.add("data.pkl", tree.finish());
  zip_.add("byteorder", "little");
}

void TorchFileWriter::write(std::span<const std::byte> data) {
  zip_.begin_record("data/" + std::to_string(next_), tensors_.at(next_).size_bytes());
  zip_.append(data);
  zip_.end_record();
  ++next_;
}

uint64_t TorchFileWriter::finish() {
  if (next_ != tensors_.size()) {
    throw InternalError("torch file: found {} of {} tensors written", next_, tensors_.size());
  }
  zip_.add("version", "3\n");
  return zip_.finish();
}

}  // namespace strata::hf
