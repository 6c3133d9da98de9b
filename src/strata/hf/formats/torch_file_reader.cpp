// TorchFile: from the pickle's tree to tensors and numbers.
#include <algorithm>
#include <array>
#include <cstring>

#include "strata/base/error.h"
#include "strata/hf/formats/torch_file.h"
#include "strata/hf/formats/torch_types.h"

namespace strata::hf {
namespace {

// Deeper trees are hostile.
constexpr size_t kMaxDepth = 32;

constexpr std::string_view kRebuildTensor = "torch._utils _rebuild_tensor_v2";
constexpr std::string_view kRebuildTensor3 = "torch._utils _rebuild_tensor_v3";
constexpr std::string_view kRebuildParameter = "torch._utils _rebuild_parameter";
constexpr std::string_view kOrderedDict = "collections OrderedDict";
constexpr std::string_view kUntypedStorage = "torch.storage UntypedStorage";

std::string_view behind(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : std::string_view{};
}

std::vector<int64_t> integers(const Pickle& pickle, const PickleNode& list, const char* what) {
  const PickleNode* items = &list;
  if (pickle.is_call(list, "torch Size")) items = &pickle.argument(list, 0);
  std::vector<int64_t> values;
  for (const PickleRef ref : items->items) {
    const PickleNode& item = pickle.node(ref);
    if (items->kind != PickleKind::kTuple || item.kind != PickleKind::kInt || item.integer < 0) {
      throw FormatError(
          "{}: found a {} that is no tuple of sizes, expected one; the file is damaged",
          pickle.subject(), what);
    }
    values.push_back(item.integer);
  }
  return values;
}

uint64_t checked_bytes(const std::vector<int64_t>& shape, DType dtype, const std::string& subject) {
  uint64_t bytes = size_of(dtype);
  for (int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) {
      throw FormatError("{}: found the shape [{}], expected one that fits the memory", subject,
                        fmt::join(shape, ", "));
    }
  }
  return bytes;
}

}  // namespace

bool is_torch_global(std::string_view global) {
  constexpr std::array kAllowed = {kRebuildTensor,
                                   kRebuildTensor3,
                                   kRebuildParameter,
                                   kOrderedDict,
                                   kUntypedStorage,
                                   std::string_view("torch Size"),
                                   std::string_view("torch.storage TypedStorage")};
  if (std::ranges::find(kAllowed, global) != kAllowed.end()) return true;
  const std::string_view name = behind(global, "torch ");
  return dtype_of_torch_storage(name).has_value() || dtype_of_torch_dtype(name).has_value();
}

int64_t TorchTensor::numel() const {
  int64_t numel = 1;
  for (int64_t size : shape) numel *= size;
  return numel;
}

uint64_t TorchTensor::size_bytes() const { return static_cast<uint64_t>(numel()) * size_of(dtype); }

TorchFile::TorchFile(std::span<const std::byte> bytes, const std::string& subject)
    : subject_(subject), archive_(bytes, subject) {
  const ZipRecord* order = archive_.find("byteorder");
  if (order != nullptr && std::string_view(reinterpret_cast<const char*>(order->data.data()),
                                           order->data.size()) != "little") {
    throw FormatError("{}: found numbers of another byte order, expected little-endian ones",
                      subject_);
  }
  const ZipRecord* tree = archive_.find("data.pkl");
  if (tree == nullptr) {
    throw FormatError("{}: found no data.pkl in it, expected a file of torch.save", subject_);
  }
  const Pickle pickle = parse_pickle(tree->data, subject_, is_torch_global);
  values_left_ = tree->data.size();
  std::vector<std::string> path;
  walk(pickle, pickle.root_ref(), path);
}

void TorchFile::walk(const Pickle& pickle, PickleRef ref, std::vector<std::string>& path) {
  // A tree has no more values than its pickle has bytes; shared lists can stand for exponentially
  // many.
  if (path.size() > kMaxDepth || values_left_-- == 0) {
    throw FormatError("{}: found values nested without end, expected a state dict", subject_);
  }
  const PickleNode& node = pickle.node(ref);
  switch (node.kind) {
    case PickleKind::kDict:
      add_items(pickle, node, path);
      return;
    case PickleKind::kList:
    case PickleKind::kTuple:
      for (size_t i = 0; i < node.items.size(); ++i) {
        path.push_back(std::to_string(i));
        walk(pickle, node.items[i], path);
        path.pop_back();
      }
      return;
    case PickleKind::kCall: {
      if (pickle.is_call(node, kOrderedDict)) {
        if (node.items.size() > 2) add_items(pickle, pickle.node(node.items[2]), path);
        return;
      }
      if (pickle.is_call(node, kRebuildParameter)) {
        add_tensor(pickle, pickle.argument(node, 0), path);
        return;
      }
      if (pickle.is_call(node, "torch Size")) {
        scalars_.push_back({path, std::nullopt});
        return;
      }
      add_tensor(pickle, node, path);
      return;
    }
    case PickleKind::kBool:
    case PickleKind::kInt:
      scalars_.push_back({path, static_cast<double>(node.integer)});
      return;
    case PickleKind::kFloat:
      scalars_.push_back({path, node.number});
      return;
    default:
      scalars_.push_back({path, std::nullopt});
  }
}

void TorchFile::add_items(const Pickle& pickle, const PickleNode& dict,
                          std::vector<std::string>& path) {
  if (dict.kind != PickleKind::kDict) return;  // an empty OrderedDict with attributes
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleNode& key = pickle.node(dict.items[i]);
    if (key.kind != PickleKind::kString && key.kind != PickleKind::kInt) {
      throw FormatError("{}: found a key that is neither text nor a number, expected names",
                        subject_);
    }
    path.push_back(key.kind == PickleKind::kString ? key.text : std::to_string(key.integer));
    walk(pickle, dict.items[i + 1], path);
    path.pop_back();
  }
}

void TorchFile::add_tensor(const Pickle& pickle, const PickleNode& call,
                           std::vector<std::string> path) {
  const bool has_type = pickle.is_call(call, kRebuildTensor3);
  if (!has_type && !pickle.is_call(call, kRebuildTensor)) {
    throw FormatError("{}: found a value of another kind at \"{}\", expected tensors and numbers",
                      subject_, fmt::join(path, "."));
  }
  const PickleNode& id = pickle.argument(call, 0);
  const PickleNode* storage =
      id.kind == PickleKind::kPersistent ? &pickle.node(id.items[0]) : nullptr;
  if (storage == nullptr || storage->kind != PickleKind::kTuple || storage->items.size() < 5) {
    throw FormatError("{}: found a tensor without a storage at \"{}\", expected one", subject_,
                      fmt::join(path, "."));
  }
  TorchTensor tensor;
  tensor.path = std::move(path);
  const std::string& type =
      has_type ? pickle.argument(call, 6).text : pickle.node(storage->items[1]).text;
  const auto dtype = has_type ? dtype_of_torch_dtype(behind(type, "torch "))
                              : dtype_of_torch_storage(behind(type, "torch "));
  if (!dtype) {
    throw FormatError("{}: found elements of type \"{}\" at \"{}\", expected a known one", subject_,
                      type, fmt::join(tensor.path, "."));
  }
  tensor.dtype = *dtype;
  const PickleNode& offset = pickle.argument(call, 1);
  tensor.offset = offset.kind == PickleKind::kInt ? offset.integer : -1;
  tensor.shape = integers(pickle, pickle.argument(call, 2), "shape");
  tensor.strides = integers(pickle, pickle.argument(call, 3), "stride");
  tensor.storage = archive_.find("data/" + pickle.node(storage->items[2]).text);
  check_view(tensor);
  tensors_.push_back(std::move(tensor));
}

void TorchFile::check_view(const TorchTensor& tensor) const {
  const auto fail = [&](const std::string& found) {
    throw FormatError(
        "{}: tensor \"{}\": found {}, expected a view inside its storage; the file is "
        "damaged",
        subject_, fmt::join(tensor.path, "."), found);
  };
  if (tensor.storage == nullptr) fail("no storage of that name");
  if (tensor.offset < 0 || tensor.strides.size() != tensor.shape.size()) fail("a broken view");
  const uint64_t bytes = checked_bytes(tensor.shape, tensor.dtype, subject_);
  if (bytes == 0) return;
  // A view that repeats elements (stride 0) must not stand for more than the file holds.
  if (bytes > tensor.storage->data.size()) fail("more elements than are stored");
  uint64_t last = static_cast<uint64_t>(tensor.offset);
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    uint64_t reach = 0;
    if (__builtin_mul_overflow(static_cast<uint64_t>(tensor.shape[d] - 1),
                               static_cast<uint64_t>(tensor.strides[d]), &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      fail("strides beyond all bounds");
    }
  }
  if (last >= tensor.storage->data.size() / size_of(tensor.dtype)) {
    fail(fmt::format("elements up to {} of {} bytes", last, tensor.storage->data.size()));
  }
}

void TorchFile::read(const TorchTensor& tensor, std::span<std::byte> out) const {
  const size_t element = size_of(tensor.dtype);
  const std::byte* data =
      tensor.storage->data.data() + static_cast<size_t>(tensor.offset) * element;
  if (out.empty()) return;
  // Rows along the last dimension that stands for itself are copied at once.
  size_t inner = tensor.shape.size();
  int64_t run = 1;
  while (inner > 0 && (tensor.strides[inner - 1] == run || tensor.shape[inner - 1] == 1)) {
    run *= tensor.shape[--inner];
  }
  std::vector<int64_t> index(inner, 0);
  const size_t run_bytes = static_cast<size_t>(run) * element;
  for (size_t done = 0; done < out.size(); done += run_bytes) {
    int64_t at = 0;
    for (size_t d = 0; d < inner; ++d) at += index[d] * tensor.strides[d];
    std::memcpy(out.data() + done, data + static_cast<size_t>(at) * element, run_bytes);
    for (size_t d = inner; d-- > 0 && ++index[d] == tensor.shape[d];) index[d] = 0;
  }
}

void TorchFile::verify() const {
  for (const ZipRecord& record : archive_.records()) archive_.verify(record);
}

void TorchFile::verify(const TorchTensor& tensor) {
  const auto prove = [this](const ZipRecord& record) {
    if (!proved_.contains(&record)) archive_.verify(record);
    proved_.insert(&record);
  };
  for (const ZipRecord& record : archive_.records()) {
    if (record.name.ends_with(".pkl")) prove(record);
  }
  prove(*tensor.storage);
}

}  // namespace strata::hf
