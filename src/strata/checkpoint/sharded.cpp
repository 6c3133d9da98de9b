#include "strata/checkpoint/sharded.h"

#include <optional>

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

// This rank's tensors and a part of the manifest that lists them.
void write_rank_file(const fs::path& folder, int rank, const std::vector<LocalPiece>& pieces,
                     FileSystem& files) {
  const std::string file = fmt::format("rank-{:05d}.safetensors", rank);
  std::vector<hf::TensorSpec> specs;
  for (const LocalPiece& piece : pieces) {
    specs.push_back({piece.tensor, file_type_of(piece.data.scalar_type()), {piece.data.numel()}});
  }
  hf::SafetensorsWriter writer(folder / file, specs, {{"format", "strata"}}, files);
  std::map<std::string, TensorRecord> part;
  for (const LocalPiece& piece : pieces) {
    const at::Tensor host = piece.data.cpu();
    writer.write(piece.tensor, bytes_of(host));
    TensorRecord& record = part[piece.tensor];
    record.shape = piece.shape;
    record.dtype = std::string(hf::name_of(file_type_of(host.scalar_type())));
    record.pieces = {{file, piece.tensor, piece.begin, piece.begin + host.numel(),
                      checksum(host.data_ptr(), host.nbytes())}};
  }
  writer.finish();
  write_file_atomically(part_path(folder, rank), tensors_json(part).dump(), files);
}

// Rank 0 joins the parts; they served only to reach it.
void write_manifest(const fs::path& folder, Manifest manifest, int shard_ranks,
                    const SmallFiles& small_files, FileSystem& files) {
  for (const auto& [name, content] : small_files) {
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

void fill(PieceReader& reader, const LocalPiece& wanted) {
  const TensorRecord& record = reader.record(wanted.tensor);
  if (record.shape != wanted.shape) {
    throw FormatError(
        "{}: found \"{}\" of shape [{}], expected [{}]; resume with the settings of the run that "
        "wrote it",
        reader.folder().string(), wanted.tensor, fmt::join(record.shape, ", "),
        fmt::join(wanted.shape, ", "));
  }
  const at::ScalarType type = memory_type_of(hf::parse_dtype(record.dtype));
  const at::ScalarType wanted_type = wanted.data.scalar_type();
  if (type == wanted_type && wanted.data.is_cpu()) {
    reader.read(wanted.tensor, wanted.begin, bytes_of(wanted.data));
    return;
  }
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
    folder.emplace(final_path, files);
    temporary = folder->path().string();
  });
  temporary = comm::broadcast_string(group, temporary);
  comm::all_or_nothing(group, what, [&] {
    if (role.writes) write_rank_file(temporary, role.shard_rank, pieces, files);
  });
  comm::all_or_nothing(group, what, [&] {
    if (group.rank() != 0) return;
    Manifest manifest;
    manifest.world_size = group.size();
    manifest.step = request.step;
    manifest.num_updates = request.num_updates;
    write_manifest(temporary, std::move(manifest), role.shard_ranks, request.small_files, files);
    folder->commit();
    write_file_atomically(request.output_dir / "latest", final_path.filename().string() + "\n",
                          files);
  });
  return final_path;
}

fs::path save(const fs::path& output_dir, int64_t step, shard::UnitStore& store,
              optim::Optimizer* optimizer, const SmallFiles& small_files, FileSystem& files) {
  comm::Mesh& mesh = store.mesh();
  const SaveRequest request{output_dir, step, optimizer ? optimizer->num_steps() : step,
                            small_files};
  return write_checkpoint(request, local_pieces(store, optimizer), role_of(mesh), *mesh.world,
                          files);
}

void load(PieceReader& reader, shard::UnitStore& store, optim::Optimizer* optimizer) {
  for (const LocalPiece& piece : local_pieces(store, optimizer)) fill(reader, piece);
  if (optimizer != nullptr) optimizer->set_num_steps(reader.manifest().num_updates);
}

}  // namespace strata::checkpoint
