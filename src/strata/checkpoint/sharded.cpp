#include "strata/checkpoint/sharded.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/element_type.h"
#include "strata/checkpoint/folders.h"
#include "strata/comm/agreement.h"
#include "strata/hf/safetensors.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

std::span<std::byte> bytes_of(const at::Tensor& flat) {
  return {static_cast<std::byte*>(flat.data_ptr()), flat.nbytes()};
}

fs::path part_path(const fs::path& folder, int rank) {
  return folder / fmt::format("rank-{:05d}.json", rank);
}

// What the checksum reads the processor's cache still has when it is copied to the writer's block.
constexpr size_t kCachedBytes = size_t{256} << 10;

std::string rank_file(int rank) { return fmt::format("rank-{:05d}.safetensors", rank); }

// A record without file and checksum yet.
TensorRecord record_of(const LocalPiece& piece) {
  TensorRecord record;
  record.shape = piece.shape;
  record.dtype = std::string(hf::name_of(file_type_of(piece.data.scalar_type())));
  record.pieces = {{"", piece.tensor, piece.begin, piece.begin + piece.data.numel(), ""}};
  return record;
}

// An open file and this rank's part of it, in the order of the file: it is written from its
// beginning to its end.
class PieceFile {
 public:
  PieceFile(std::string name, std::unique_ptr<hf::SafetensorsWriter> writer)
      : name_(std::move(name)), writer_(std::move(writer)) {}

  // `offset`: the piece's first element in the file's tensor. `is_listed`: the manifest says that
  // the piece is here.
  void add(const LocalPiece& piece, std::string key, int64_t offset, bool is_listed = true) {
    pieces_.push_back({&piece, std::move(key), offset, is_listed});
  }

  void write(const StreamedFrom& streamed, std::map<std::string, TensorRecord>& part) {
    std::unordered_map<std::string_view, size_t> places;
    for (const hf::TensorInfo& info : writer_->tensors()) places.emplace(info.name, places.size());
    std::ranges::stable_sort(pieces_, {},
                             [&](const Part& p) { return std::pair(places.at(p.key), p.offset); });
    uint64_t bytes = 0;
    for (const Part& p : pieces_) bytes += p.piece->data.nbytes();
    if (bytes >= streamed.bytes) writer_->stream(streamed.block_bytes);
    for (const Part& p : pieces_) {
      TensorRecord record = record_of(*p.piece);
      PieceRecord& piece = record.pieces[0];
      piece.file = name_;
      piece.key = p.key;
      piece.offset = p.offset;
      piece.checksum = write_one(p);
      if (p.is_listed) part.emplace(p.piece->tensor, std::move(record));
    }
    writer_->finish();
  }

 private:
  struct Part {
    const LocalPiece* piece;
    std::string key;
    int64_t offset;
    bool is_listed;
  };

  std::string write_one(const Part& p) {
    const at::Tensor host = p.piece->data.cpu();
    const auto begin = static_cast<uint64_t>(p.offset) * host.element_size();
    Checksum sum;
    std::span<const std::byte> rest = bytes_of(host);
    for (uint64_t at = begin; !rest.empty();) {
      const auto some = rest.first(std::min(rest.size(), kCachedBytes));
      sum.update(some);
      writer_->write(p.key, some, at);
      at += some.size();
      rest = rest.subspan(some.size());
    }
    return sum.text();
  }

  std::string name_;
  std::unique_ptr<hf::SafetensorsWriter> writer_;
  std::vector<Part> pieces_;
};

void write_part(const fs::path& folder, int rank, const std::map<std::string, TensorRecord>& part,
                FileSystem& files) {
  write_file_atomically(part_path(folder, rank), tensors_json(part).dump(), files);
}

// This rank's tensors and a part of the manifest that lists them.
void write_rank_file(const fs::path& folder, int rank, const std::vector<LocalPiece>& pieces,
                     const StreamedFrom& streamed, FileSystem& files) {
  std::vector<hf::TensorSpec> specs;
  for (const LocalPiece& piece : pieces) {
    specs.push_back({piece.tensor, file_type_of(piece.data.scalar_type()), {piece.data.numel()}});
  }
  const std::map<std::string, std::string> metadata{{"format", "strata"}};
  PieceFile file(rank_file(rank), std::make_unique<hf::SafetensorsWriter>(folder / rank_file(rank),
                                                                          specs, metadata, files));
  for (const LocalPiece& piece : pieces) file.add(piece, piece.tensor, 0);
  std::map<std::string, TensorRecord> part;
  file.write(streamed, part);
  write_part(folder, rank, part, files);
}

// The file of whole tensors that holds `tensor`, and its keys there.
struct WholePlace {
  std::string file;
  std::vector<std::string> keys;
};
WholePlace whole_place(const WholeFiles& whole, const std::string& tensor) {
  constexpr std::string_view kWeights = "parameter/";
  const std::string frozen = fmt::format("{}/", kFrozen);
  if (tensor.starts_with(frozen)) return {whole.weights, {tensor.substr(frozen.size())}};
  if (!tensor.starts_with(kWeights)) return {kWholeOptimizerFile, {tensor}};
  const auto keys = whole.names.find(tensor.substr(kWeights.size()));
  if (keys != whole.names.end() && keys->second.empty()) return {kWholeOptimizerFile, {tensor}};
  if (keys != whole.names.end()) return {whole.weights, keys->second};
  throw InternalError("{}: found no name for \"{}\", expected one for every trained weight",
                      whole.weights, tensor);
}

// Tells rank 0 what this rank holds, so that it can lay the files out.
void announce(const fs::path& folder, int rank, const std::vector<LocalPiece>& pieces,
              FileSystem& files) {
  std::map<std::string, TensorRecord> part;
  for (const LocalPiece& piece : pieces) {
    TensorRecord record = record_of(piece);
    record.pieces[0].file = rank_file(rank);
    part.emplace(piece.tensor, std::move(record));
  }
  write_part(folder, rank, part, files);
}

void create_whole_files(const fs::path& folder, const WholeFiles& whole, int shard_ranks,
                        FileSystem& files) {
  Manifest all;
  for (int rank = 0; rank < shard_ranks; ++rank) {
    const fs::path part = part_path(folder, rank);
    add_tensors(read_json_file(part), part.string(), all);
  }
  std::map<std::string, std::vector<hf::TensorSpec>> specs{{whole.weights, {}}};
  for (const auto& [name, record] : all.tensors) {
    const WholePlace place = whole_place(whole, name);
    for (const std::string& key : place.keys) {
      specs[place.file].push_back({key, hf::parse_dtype(record.dtype), record.shape});
    }
  }
  for (const auto& [key, tensor] : whole.fixed) {
    specs[whole.weights].push_back({key, file_type_of(tensor.scalar_type()), tensor.sizes().vec()});
  }
  for (auto& [file, of_file] : specs) {
    hf::SafetensorsWriter::create_shared(folder / file, std::move(of_file), whole.metadata, files);
  }
}

// What does not train is rank 0's to write.
std::vector<LocalPiece> fixed_pieces(const WholeFiles& whole, int rank) {
  std::vector<LocalPiece> pieces;
  if (rank != 0) return pieces;
  for (const auto& [key, tensor] : whole.fixed) {
    pieces.push_back({key, tensor.sizes().vec(), 0, tensor.contiguous().view({-1})});
  }
  return pieces;
}

void write_whole_files(const fs::path& folder, const SaveRequest& request, int rank,
                       const std::vector<LocalPiece>& pieces, FileSystem& files) {
  const WholeFiles& whole = *request.whole;
  std::map<std::string, PieceFile> open;
  const auto file = [&](const std::string& name) -> PieceFile& {
    const auto found = open.find(name);
    if (found != open.end()) return found->second;
    auto writer = hf::SafetensorsWriter::join(folder / name, files);
    return open.emplace(name, PieceFile(name, std::move(writer))).first->second;
  };
  for (const LocalPiece& piece : pieces) {
    const WholePlace place = whole_place(whole, piece.tensor);
    for (size_t i = 0; i < place.keys.size(); ++i) {
      file(place.file).add(piece, place.keys[i], piece.begin, /*is_listed=*/i == 0);
    }
  }
  const std::vector<LocalPiece> fixed = fixed_pieces(whole, rank);
  for (const LocalPiece& piece : fixed) {
    file(whole.weights).add(piece, piece.tensor, 0, /*is_listed=*/false);
  }
  std::map<std::string, TensorRecord> part;
  for (auto& [name, own] : open) own.write(request.streamed, part);
  write_part(folder, rank, part, files);
}

// Rank 0 joins the parts; they served only to reach it.
void write_manifest(const fs::path& folder, Manifest manifest, int shard_ranks,
                    const SmallFiles& small_files, FileSystem& files) {
  for (const auto& [name, content] : small_files) {
    if (const fs::path below = fs::path(name).parent_path(); !below.empty()) {
      if (const int error = files.make_folder(folder / below)) {
        throw IoError("{}: found {} when creating it, expected room for it; free space",
                      (folder / below).string(), errno_text(error));
      }
    }
    write_file_atomically(folder / name, content, files);
    manifest.files[name] = {content.size(), checksum(content.data(), content.size())};
  }
  for (int rank = 0; rank < shard_ranks; ++rank) {
    const fs::path part = part_path(folder, rank);
    add_tensors(read_json_file(part), part.string(), manifest);
    files.remove(part);
  }
  write_file_atomically(folder / "manifest.json", manifest_text(manifest), files);
}

[[noreturn]] void throw_unlike(const hf::SafetensorsFile& saved, const std::string& found,
                               const std::string& expected) {
  throw IoError("{}: found {} after saving, expected {}; check the disk", saved.path().string(),
                found, expected);
}

std::span<const std::byte> saved_bytes(const hf::SafetensorsFile& saved, const std::string& key,
                                       hf::DType dtype, const std::vector<int64_t>& shape) {
  const hf::TensorInfo* info = saved.find(key);
  if (info == nullptr || info->dtype != dtype || info->shape != shape) {
    throw_unlike(saved, fmt::format("no \"{}\" of its shape and type", key), "what was trained");
  }
  return saved.bytes(*info);
}

void require_same(const hf::SafetensorsFile& saved, const std::string& key,
                  std::span<const std::byte> found, std::span<const std::byte> expected) {
  if (!std::ranges::equal(found, expected)) {
    throw_unlike(saved, fmt::format("other values in \"{}\"", key), "what was written");
  }
  forget_pages(found);
}

// What from_pretrained() loads out of a checkpoint is read back as the result of a run is: keys,
// shapes, values, metadata, and no matrix of zeros.
void read_back(const fs::path& folder, const WholeFiles& whole, Trained trained) {
  const hf::SafetensorsFile saved(folder / whole.weights);
  if (saved.metadata() != whole.metadata) throw_unlike(saved, "other metadata", "what was written");
  PieceReader reader(folder);
  size_t num_expected = whole.fixed.size();
  for (const auto& [name, record] : reader.manifest().tensors) {
    const WholePlace place = whole_place(whole, name);
    if (place.file != whole.weights) continue;
    num_expected += place.keys.size();
    const hf::DType dtype = hf::parse_dtype(record.dtype);
    const auto first = saved_bytes(saved, place.keys[0], dtype, record.shape);
    if (reader.is_zero(name) && must_not_be_zero(place.keys[0], record.shape, trained)) {
      throw_unlike(saved, fmt::format("only zeros in \"{}\"", place.keys[0]), "what was trained");
    }
    // The manifest proves the first of two names.
    for (size_t i = 1; i < place.keys.size(); ++i) {
      require_same(saved, place.keys[i], saved_bytes(saved, place.keys[i], dtype, record.shape),
                   first);
    }
  }
  for (const auto& [key, tensor] : whole.fixed) {
    const at::Tensor host = tensor.contiguous().cpu();
    const auto found =
        saved_bytes(saved, key, file_type_of(host.scalar_type()), host.sizes().vec());
    require_same(saved, key, found, bytes_of(host));
  }
  if (saved.tensors().size() != num_expected) {
    throw_unlike(saved, fmt::format("{} tensors", saved.tensors().size()),
                 fmt::format("{}", num_expected));
  }
}

// Whether the state takes the file's bytes as they are.
bool is_read_as_it_is(const PieceReader& reader, const LocalPiece& wanted) {
  const auto type = hf::find_dtype(reader.record(wanted.tensor).dtype);
  return wanted.data.is_cpu() && type && memory_type_of(*type) == wanted.data.scalar_type();
}

void require_shape(const PieceReader& reader, const LocalPiece& wanted) {
  const TensorRecord& record = reader.record(wanted.tensor);
  if (record.shape != wanted.shape) {
    throw FormatError(
        "{}: found \"{}\" of shape [{}], expected [{}]; resume with the settings of the run that "
        "wrote it",
        reader.folder().string(), wanted.tensor, fmt::join(record.shape, ", "),
        fmt::join(wanted.shape, ", "));
  }
}

void read_converting(PieceReader& reader, const LocalPiece& wanted) {
  const TensorRecord& record = reader.record(wanted.tensor);
  const at::ScalarType type = memory_type_of(hf::parse_dtype(record.dtype));
  const at::ScalarType wanted_type = wanted.data.scalar_type();
  // Another precision is a conversion; codes of a quantised state are not numbers to convert.
  if (type != wanted_type && !(at::isFloatingType(type) && at::isFloatingType(wanted_type))) {
    throw FormatError(
        "{}: found \"{}\" of type {}, expected {}; resume with the settings of the run that wrote "
        "it",
        reader.folder().string(), wanted.tensor, record.dtype,
        hf::name_of(file_type_of(wanted_type)));
  }
  const at::Tensor part = at::empty({wanted.data.numel()}, at::TensorOptions().dtype(type));
  reader.read(wanted.tensor, wanted.begin, bytes_of(part));
  wanted.data.copy_(part);
}

}  // namespace

SaveRole role_of(comm::Mesh& mesh) {
  return {mesh.shard->rank(), mesh.shard->size(), mesh.replicate->rank() == 0};
}

fs::path write_checkpoint(const SaveRequest& request, const std::vector<LocalPiece>& pieces,
                          const SaveRole& role, comm::Group& group, FileSystem& files) {
  const fs::path final_path = folder_of(request.output_dir, request.step);
  const std::string what = "saving " + final_path.filename().string();
  std::optional<AtomicFolder> folder;
  std::string temporary;
  comm::all_or_nothing(group, what, [&] {
    if (group.rank() != 0) return;
    finish_replacement(final_path, files);
    folder.emplace(final_path, files);
    temporary = folder->path().string();
  });
  temporary = comm::broadcast_string(group, temporary);
  if (request.whole) {
    comm::all_or_nothing(group, what, [&] {
      if (role.writes) announce(temporary, role.shard_rank, pieces, files);
    });
    comm::all_or_nothing(group, what, [&] {
      if (group.rank() != 0) return;
      create_whole_files(temporary, *request.whole, role.shard_ranks, files);
    });
  }
  comm::all_or_nothing(group, what, [&] {
    if (!role.writes) return;
    if (request.whole) {
      write_whole_files(temporary, request, role.shard_rank, pieces, files);
    } else {
      write_rank_file(temporary, role.shard_rank, pieces, request.streamed, files);
    }
  });
  comm::all_or_nothing(group, what, [&] {
    if (group.rank() != 0) return;
    Manifest manifest;
    manifest.world_size = group.size();
    manifest.step = request.step;
    manifest.num_updates = request.num_updates;
    write_manifest(temporary, std::move(manifest), role.shard_ranks, request.small_files, files);
    if (request.whole) read_back(temporary, *request.whole, request.trained);
    folder->commit();
    try {
      write_file_atomically(request.output_dir / "latest", final_path.filename().string() + "\n",
                            files);
    } catch (const IoError& error) {
      if (request.leftover == nullptr) throw;
      *request.leftover =
          fmt::format("{} is saved, but {}", final_path.filename().string(), error.what());
    }
  });
  return final_path;
}

fs::path save(const fs::path& output_dir, int64_t step, shard::UnitStore& store,
              optim::Optimizer* optimizer, const SmallFiles& small_files, FileSystem& files) {
  comm::Mesh& mesh = store.mesh();
  const SaveRequest request{.output_dir = output_dir,
                            .step = step,
                            .num_updates = optimizer ? optimizer->num_steps() : step,
                            .small_files = small_files};
  return write_checkpoint(request, local_pieces(store, optimizer), role_of(mesh), *mesh.world,
                          files);
}

void load(PieceReader& reader, shard::UnitStore& store, optim::Optimizer* optimizer) {
  const std::vector<LocalPiece> pieces = local_pieces(store, optimizer);
  std::vector<WantedRange> wanted;
  for (const LocalPiece& piece : pieces) {
    require_shape(reader, piece);
    if (is_read_as_it_is(reader, piece)) {
      wanted.push_back({piece.tensor, piece.begin, bytes_of(piece.data)});
    }
  }
  reader.read(wanted, /*is_shared=*/store.mesh().replicate->size() > 1);
  for (const LocalPiece& piece : pieces) {
    if (!is_read_as_it_is(reader, piece)) read_converting(reader, piece);
  }
  if (optimizer != nullptr) optimizer->set_num_steps(reader.manifest().num_updates);
}

}  // namespace strata::checkpoint
