// DcpFolder: `.metadata` to tensors and places, and blocks to whole tensors.
#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "strata/base/error.h"
#include "strata/hf/formats/dcp.h"
#include "strata/hf/formats/torch_types.h"

namespace strata::hf {
namespace {

constexpr std::string_view kClasses = "torch.distributed.checkpoint.metadata ";
constexpr size_t kMaxNameBytes = 1024;
// Comparisons of blocks that a folder may cost; whole rows, as FSDP shards, cost one a block.
constexpr size_t kMaxComparisons = size_t{1} << 27;

bool is_dcp_global(std::string_view global) {
  // Python 3.13 has paths in another module.
  constexpr std::array<std::string_view, 7> kAllowed = {
      "torch.distributed.checkpoint.filesystem _StorageInfo",
      "torch Size",
      "torch.serialization _get_layout",
      "pathlib PosixPath",
      "pathlib PurePosixPath",
      "pathlib._local PosixPath",
      "pathlib._local PurePosixPath"};
  constexpr std::array<std::string_view, 8> kMetadata = {"Metadata",
                                                         "TensorStorageMetadata",
                                                         "TensorProperties",
                                                         "_MEM_FORMAT_ENCODING",
                                                         "ChunkStorageMetadata",
                                                         "BytesStorageMetadata",
                                                         "MetadataIndex",
                                                         "StorageMeta"};
  if (global.starts_with(kClasses)) {
    return std::ranges::find(kMetadata, global.substr(kClasses.size())) != kMetadata.end();
  }
  constexpr std::string_view kTorch = "torch ";
  const bool is_type =
      global.starts_with(kTorch) && dtype_of_torch_dtype(global.substr(kTorch.size())).has_value();
  return is_type || std::ranges::find(kAllowed, global) != kAllowed.end();
}

// Walks the pickle of a `.metadata`.
class MetadataTree {
 public:
  MetadataTree(std::span<const std::byte> bytes, const std::string& subject)
      : pickle_(parse_pickle(bytes, subject, is_dcp_global)) {}

  const Pickle& pickle() const { return pickle_; }
  const PickleNode& root() const { return pickle_.root(); }

  [[noreturn]] void fail(const std::string& found) const {
    throw FormatError(
        "{}: found {}, expected the metadata of torch.distributed.checkpoint 1.0.0; use another "
        "checkpoint",
        pickle_.subject(), found);
  }
  // A field of an object of the class.
  const PickleNode* field(const PickleNode& object, std::string_view name,
                          std::string_view type) const {
    const bool is_object =
        object.kind == PickleKind::kCall && pickle_.node(object.items[0]).text.ends_with(type);
    if (!is_object) fail(fmt::format("no {}", type));
    if (object.items.size() < 3) return nullptr;
    const PickleNode* state = &pickle_.node(object.items[2]);
    // A class with slots has (None, {...}).
    if (state->kind == PickleKind::kTuple && state->items.size() == 2) {
      state = &pickle_.node(state->items[1]);
    }
    return pickle_.find(*state, name);
  }
  const PickleNode& required(const PickleNode& object, std::string_view name,
                             std::string_view type) const {
    const PickleNode* found = field(object, name, type);
    if (found == nullptr) fail(fmt::format("a {} without {}", type, name));
    return *found;
  }
  std::vector<int64_t> sizes(const PickleNode& node) const {
    if (!pickle_.is_call(node, "torch Size")) fail("a size of another kind");
    std::vector<int64_t> sizes;
    for (const PickleRef ref : pickle_.argument(node, 0).items) {
      const PickleNode& item = pickle_.node(ref);
      if (item.kind != PickleKind::kInt || item.integer < 0) fail("a size below 0");
      sizes.push_back(item.integer);
    }
    return sizes;
  }
  uint64_t number(const PickleNode& node) const {
    if (node.kind != PickleKind::kInt || node.integer < 0) fail("a position below 0");
    return static_cast<uint64_t>(node.integer);
  }

 private:
  Pickle pickle_;
};

using Key = std::pair<std::string, std::vector<int64_t>>;  // name, offsets

std::map<Key, DcpPlace> read_places(const MetadataTree& tree) {
  const PickleNode& storage = tree.required(tree.root(), "storage_data", "Metadata");
  if (storage.kind != PickleKind::kDict) tree.fail("storage data of another kind");
  std::map<Key, DcpPlace> places;
  for (size_t i = 0; i + 1 < storage.items.size(); i += 2) {
    const PickleNode& index = tree.pickle().node(storage.items[i]);
    const PickleNode& info = tree.pickle().node(storage.items[i + 1]);
    const PickleNode* offset = tree.field(index, "offset", "MetadataIndex");
    Key key{tree.required(index, "fqn", "MetadataIndex").text, {}};
    if (key.first.size() > kMaxNameBytes) tree.fail("a name without end");
    if (offset != nullptr && offset->kind != PickleKind::kNone) key.second = tree.sizes(*offset);
    const PickleNode* transforms = tree.field(info, "transform_descriptors", "_StorageInfo");
    if (transforms != nullptr && transforms->kind != PickleKind::kNone) {
      tree.fail("a transformed (compressed) file");
    }
    const std::string& file = tree.required(info, "relative_path", "_StorageInfo").text;
    if (file.empty() || file == ".." || file.find('/') != std::string::npos) {
      tree.fail(fmt::format("the file name \"{}\"", file));
    }
    places[key] = {file, tree.number(tree.required(info, "offset", "_StorageInfo")),
                   tree.number(tree.required(info, "length", "_StorageInfo"))};
  }
  return places;
}

std::map<std::string, std::vector<std::string>> read_paths(const MetadataTree& tree) {
  std::map<std::string, std::vector<std::string>> paths;
  const PickleNode* planner = tree.field(tree.root(), "planner_data", "Metadata");
  if (planner == nullptr || planner->kind != PickleKind::kDict) return paths;
  for (size_t i = 0; i + 1 < planner->items.size(); i += 2) {
    std::vector<std::string> path;
    for (const PickleRef ref : tree.pickle().node(planner->items[i + 1]).items) {
      const PickleNode& part = tree.pickle().node(ref);
      path.push_back(part.kind == PickleKind::kInt ? std::to_string(part.integer) : part.text);
    }
    paths[tree.pickle().node(planner->items[i]).text] = std::move(path);
  }
  return paths;
}

bool overlap(const DcpBlock& a, const DcpBlock& b) {
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.offsets[d] + a.sizes[d] <= b.offsets[d] || b.offsets[d] + b.sizes[d] <= a.offsets[d]) {
      return false;
    }
  }
  return true;
}

int64_t numel_of(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (int64_t size : shape) {
    if (__builtin_mul_overflow(numel, size, &numel)) return -1;
  }
  return numel;
}

class BlockCheck {
 public:
  explicit BlockCheck(const MetadataTree& tree) : tree_(tree) {}

  // The blocks lie in the tensor, do not overlap and leave nothing out.
  void check(const DcpTensor& tensor) {
    const int64_t numel = numel_of(tensor.shape);
    if (numel < 0 || numel > INT64_MAX / 8) fail(tensor, "more elements than there can be");
    int64_t covered = 0;
    std::vector<const DcpBlock*> blocks;
    for (const DcpBlock& block : tensor.blocks) {
      check_place(tensor, block);
      const int64_t size = numel_of(block.sizes);
      if (size > numel - covered) fail(tensor, "blocks that overlap");
      covered += size;
      if (size > 0) blocks.push_back(&block);
    }
    if (covered != numel) fail(tensor, "elements in no block");
    if (tensor.shape.empty()) return;
    std::ranges::sort(blocks, {}, [](const DcpBlock* block) { return block->offsets[0]; });
    for (size_t i = 0; i < blocks.size(); ++i) {
      const int64_t end = blocks[i]->offsets[0] + blocks[i]->sizes[0];
      for (size_t j = i + 1; j < blocks.size() && blocks[j]->offsets[0] < end; ++j) {
        if (comparisons_left_-- == 0) fail(tensor, "too many blocks");
        if (overlap(*blocks[i], *blocks[j])) fail(tensor, "blocks that overlap");
      }
    }
  }

 private:
  [[noreturn]] void fail(const DcpTensor& tensor, const char* found) const {
    tree_.fail(fmt::format("\"{}\" of shape [{}] with {}", tensor.name,
                           fmt::join(tensor.shape, ", "), found));
  }
  void check_place(const DcpTensor& tensor, const DcpBlock& block) const {
    const size_t dims = tensor.shape.size();
    if (block.offsets.size() != dims || block.sizes.size() != dims) {
      fail(tensor, "a block of other dimensions");
    }
    for (size_t d = 0; d < dims; ++d) {
      const int64_t size = tensor.shape[d];
      if (block.offsets[d] > size || block.sizes[d] > size - block.offsets[d]) {
        fail(tensor, "a block that reaches out of it");
      }
    }
  }

  const MetadataTree& tree_;
  size_t comparisons_left_ = kMaxComparisons;
};

// Takes each place once: a shared list of blocks must not stand for more than there are.
DcpPlace take_place(const MetadataTree& tree, const Key& key, std::map<Key, DcpPlace>& places) {
  const auto place = places.find(key);
  if (place == places.end()) tree.fail(fmt::format("\"{}\" without a file", key.first));
  DcpPlace taken = std::move(place->second);
  places.erase(place);
  return taken;
}

DcpTensor read_tensor(const MetadataTree& tree, std::string name, const PickleNode& record,
                      std::map<Key, DcpPlace>& places) {
  constexpr const char* kType = "TensorStorageMetadata";
  DcpTensor tensor;
  tensor.name = std::move(name);
  tensor.shape = tree.sizes(tree.required(record, "size", kType));
  const PickleNode& properties = tree.required(record, "properties", kType);
  const Pickle& pickle = tree.pickle();
  if (properties.kind != PickleKind::kCall || properties.items.size() < 3 ||
      pickle.node(properties.items[2]).items.empty()) {
    tree.fail("a tensor without properties");
  }
  const std::string& type = pickle.node(pickle.node(properties.items[2]).items[0]).text;
  const auto dtype = dtype_of_torch_dtype(type.substr(std::min<size_t>(type.size(), 6)));
  if (!dtype) tree.fail(fmt::format("elements of type \"{}\"", type));
  tensor.dtype = *dtype;
  for (const PickleRef ref : tree.required(record, "chunks", kType).items) {
    const PickleNode& chunk = pickle.node(ref);
    DcpBlock block;
    block.offsets = tree.sizes(tree.required(chunk, "offsets", "ChunkStorageMetadata"));
    block.sizes = tree.sizes(tree.required(chunk, "sizes", "ChunkStorageMetadata"));
    block.place = take_place(tree, {tensor.name, block.offsets}, places);
    tensor.blocks.push_back(std::move(block));
  }
  return tensor;
}

}  // namespace

uint64_t DcpTensor::size_bytes() const {
  return static_cast<uint64_t>(numel_of(shape)) * size_of(dtype);
}

bool is_dcp_folder(const std::filesystem::path& folder) {
  return std::filesystem::is_regular_file(folder / ".metadata");
}

DcpFolder::DcpFolder(const std::filesystem::path& folder) : folder_(folder) {
  const MappedFile metadata(folder / ".metadata");
  const MetadataTree tree(metadata.data(), metadata.path().string());
  std::map<Key, DcpPlace> places = read_places(tree);
  const auto paths = read_paths(tree);
  const PickleNode& records = tree.required(tree.root(), "state_dict_metadata", "Metadata");
  if (records.kind != PickleKind::kDict) tree.fail("state dict metadata of another kind");
  BlockCheck blocks(tree);
  std::set<std::string> seen;
  for (size_t i = 0; i + 1 < records.items.size(); i += 2) {
    const std::string name = tree.pickle().node(records.items[i]).text;
    const PickleNode& record = tree.pickle().node(records.items[i + 1]);
    if (!seen.insert(name).second) tree.fail(fmt::format("\"{}\" twice", name));
    const auto path = paths.find(name);
    const std::vector<std::string> keys = path == paths.end() ? std::vector{name} : path->second;
    if (tree.pickle().is_call(record, std::string(kClasses) + "BytesStorageMetadata")) {
      items_.push_back({name, keys, take_place(tree, {name, {}}, places)});
      continue;
    }
    tensors_.push_back(read_tensor(tree, name, record, places));
    blocks.check(tensors_.back());
    tensors_.back().path = keys;
  }
}

std::span<const std::byte> DcpFolder::bytes(const DcpPlace& place) {
  auto& file = files_[place.file];
  if (!file) file = std::make_unique<MappedFile>(folder_ / place.file);
  const auto data = file->data();
  if (place.offset > data.size() || place.length > data.size() - place.offset) {
    throw FormatError(
        "{}: found {} bytes, expected {} at {} as .metadata says; the file is truncated, use "
        "another checkpoint",
        file->path().string(), data.size(), place.length, place.offset);
  }
  return data.subspan(place.offset, place.length);
}

void DcpFolder::read(const DcpTensor& tensor, std::span<std::byte> out) {
  const size_t element = size_of(tensor.dtype);
  for (const DcpBlock& block : tensor.blocks) {
    const int64_t numel = numel_of(block.sizes);
    if (numel == 0) continue;
    const auto mapped = bytes(block.place);
    const TorchFile archive(
        mapped, fmt::format("{}: \"{}\"", (folder_ / block.place.file).string(), tensor.name));
    if (archive.tensors().size() != 1 || archive.tensors()[0].numel() != numel ||
        archive.tensors()[0].dtype != tensor.dtype) {
      throw FormatError(
          "{}: found another tensor than \"{}\" of {} elements of {}, expected what "
          ".metadata lists; use another checkpoint",
          (folder_ / block.place.file).string(), tensor.name, numel, name_of(tensor.dtype));
    }
    archive.verify();
    // Trailing dimensions that the block covers whole make up one run.
    size_t inner = tensor.shape.size();
    int64_t run = 1;
    while (inner > 0) {
      --inner;
      run *= block.sizes[inner];
      if (block.sizes[inner] != tensor.shape[inner]) break;
    }
    std::vector<std::byte> data(static_cast<size_t>(numel) * element);
    archive.read(archive.tensors()[0], data);
    std::vector<int64_t> index(inner, 0);
    const size_t run_bytes = static_cast<size_t>(run) * element;
    for (size_t done = 0; done < data.size(); done += run_bytes) {
      int64_t at = 0;
      for (size_t d = 0; d < tensor.shape.size(); ++d) {
        at = at * tensor.shape[d] + block.offsets[d] + (d < inner ? index[d] : 0);
      }
      std::memcpy(out.data() + static_cast<size_t>(at) * element, data.data() + done, run_bytes);
      for (size_t d = inner; d-- > 0 && ++index[d] == block.sizes[d];) index[d] = 0;
    }
    forget_pages(mapped);
  }
}

std::optional<double> DcpFolder::number(const DcpItem& item) {
  const TorchFile archive(
      bytes(item.place),
      fmt::format("{}: \"{}\"", (folder_ / item.place.file).string(), item.name));
  if (archive.scalars().size() != 1) return std::nullopt;
  return archive.scalars()[0].number;
}

size_t DcpFolder::verify() {
  const auto verify_one = [&](const DcpPlace& place, const std::string& name) {
    const auto mapped = bytes(place);
    const TorchFile archive(mapped,
                            fmt::format("{}: \"{}\"", (folder_ / place.file).string(), name));
    archive.verify();
    forget_pages(mapped);
    return archive.has_checksums();
  };
  size_t num_without = 0;
  for (const DcpTensor& tensor : tensors_) {
    bool has_all = true;
    for (const DcpBlock& block : tensor.blocks) has_all &= verify_one(block.place, tensor.name);
    num_without += !has_all;
  }
  for (const DcpItem& item : items_) verify_one(item.place, item.name);
  return num_without;
}

}  // namespace strata::hf
