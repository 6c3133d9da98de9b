#include "strata/checkpoint/sharded.h"

#include <unistd.h>

#include <optional>
#include <span>
#include <utility>

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/element_type.h"
#include "strata/checkpoint/folders.h"
#include "strata/checkpoint/whole_files.h"
#include "strata/comm/agreement.h"
#include "strata/hf/formats/safetensors.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

// This rank's tensors and a part of the manifest that lists them.
void write_rank_file(const fs::path& folder, int rank, const std::vector<LocalPiece>& pieces,
                     const PieceWriting& how, FileSystem& files) {
  std::vector<hf::TensorSpec> specs;
  for (const LocalPiece& piece : pieces) {
    specs.push_back({piece.tensor, file_type_of(piece.data.scalar_type()), {piece.data.numel()}});
  }
  const std::map<std::string, std::string> metadata{{"format", "strata"}};
  PieceFile file(rank_file(rank), std::make_unique<hf::SafetensorsWriter>(folder / rank_file(rank),
                                                                          specs, metadata, files));
  for (const LocalPiece& piece : pieces) file.add(piece, piece.tensor, 0);
  ManifestPart part;
  file.write(how, part);
  write_part(folder, rank, part, files);
}

// Rank 0 joins the parts; they served only to reach it.
void write_manifest(const fs::path& folder, Manifest manifest, int shard_ranks,
                    const SmallFiles& small_files, FileSystem& files) {
  write_small_files(folder, small_files, manifest, files);
  for (int rank = 0; rank < shard_ranks; ++rank) {
    const fs::path part = part_path(folder, rank);
    add_tensors(read_json_file(part), part.string(), manifest);
    files.remove(part);
  }
  write_file_atomically(folder / "manifest.json", manifest_text(manifest), files);
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
  reader.read(wanted.tensor, wanted.begin, flat_bytes(part));
  wanted.data.copy_(part);
}

// From the rename on there is a whole checkpoint: what goes wrong after it does not unmake it.
void put_in_place(AtomicFolder& folder, const SaveRequest& request, FileSystem& files) {
  const std::string name = folder.final_path().filename().string();
  AfterSave unseen;
  AfterSave& after = request.after != nullptr ? *request.after : unseen;
  after = {};
  try {
    folder.commit();
  } catch (const IoError& error) {
    if (!folder.is_in_place() || request.after == nullptr) throw;
    after.is_durable = false;
    after.trouble =
        fmt::format("{} is saved, but a power loss may destroy it: {}", name, error.what());
  }
  after.is_in_place = true;
  try {
    write_file_atomically(request.output_dir / "latest", name + "\n", files);
  } catch (const IoError& error) {
    if (request.after == nullptr) throw;
    after.is_latest = false;
    after.trouble += fmt::format("{} {}", after.trouble.empty() ? name + " is saved, but" : "; and",
                                 error.what());
  }
}

// What a process of this one's number left before it was killed: nobody else writes into the
// output folder of a run.
void remove_unfinished(const fs::path& final_path, FileSystem& files) {
  const fs::path left = fmt::format("{}.tmp-{}", final_path.string(), ::getpid());
  if (const int error = files.remove(left)) {
    throw IoError("{}: found {} when removing it, expected to replace it; check the permissions",
                  left.string(), errno_text(error));
  }
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
    remove_unfinished(final_path, files);
    folder.emplace(final_path, files);
    temporary = folder->path().string();
  });
  temporary = comm::broadcast_string(group, temporary);
  if (request.whole) {
    comm::all_or_nothing(group, what, [&] {
      if (role.writes) announce_pieces(temporary, role.shard_rank, pieces, files);
    });
    comm::all_or_nothing(group, what, [&] {
      if (group.rank() != 0) return;
      create_whole_files(temporary, *request.whole, role.shard_ranks, files);
    });
  }
  comm::all_or_nothing(group, what, [&] {
    if (!role.writes) return;
    // Shards are as large as each other.
    const uint64_t bytes = size_bytes(pieces) * static_cast<uint64_t>(role.shard_ranks);
    const PieceWriting how{request.streamed, request.blocks.block_bytes(bytes)};
    if (request.whole) {
      write_whole_files(temporary, *request.whole, role.shard_rank, pieces, how, files);
    } else {
      write_rank_file(temporary, role.shard_rank, pieces, how, files);
    }
  });
  comm::all_or_nothing(group, what, [&] {
    if (group.rank() != 0) return;
    Manifest manifest;
    manifest.world_size = group.size();
    manifest.step = request.step;
    manifest.num_updates = request.num_updates;
    write_manifest(temporary, std::move(manifest), role.shard_ranks, request.small_files, files);
    if (request.whole) read_back_whole_files(temporary, *request.whole, request.trained);
    put_in_place(*folder, request, files);
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

namespace {

void read_pieces(PieceReader& reader, std::span<const LocalPiece> pieces) {
  std::vector<WantedRange> wanted;
  for (const LocalPiece& piece : pieces) {
    if (is_read_as_it_is(reader, piece)) {
      wanted.push_back({piece.tensor, piece.begin, flat_bytes(piece.data)});
    }
  }
  reader.read(wanted);
  for (const LocalPiece& piece : pieces) {
    if (!is_read_as_it_is(reader, piece)) read_converting(reader, piece);
  }
}

// Where the part of each of `count` readers begins, and where the last one's ends: about as many
// bytes each.
std::vector<size_t> shares_of(const std::vector<LocalPiece>& pieces, int count) {
  const uint64_t all = size_bytes(pieces);
  std::vector<size_t> begins{0};
  uint64_t before = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    // The readers whose even part ends before this piece does.
    while (std::ssize(begins) < count &&
           before >= all / static_cast<uint64_t>(count) * begins.size()) {
      begins.push_back(i);
    }
    before += pieces[i].data.nbytes();
  }
  begins.resize(static_cast<size_t>(count) + 1, pieces.size());
  return begins;
}

}  // namespace

void load(PieceReader& reader, shard::UnitStore& store, optim::Optimizer* optimizer) {
  comm::Group& replicas = *store.mesh().replicate;
  std::vector<LocalPiece> pieces;
  std::vector<size_t> shares;
  const auto share = [&](int replica) {
    const auto at = static_cast<size_t>(replica);
    return std::span<const LocalPiece>(pieces).subspan(shares[at], shares[at + 1] - shares[at]);
  };
  comm::all_or_nothing(replicas, "reading " + reader.folder().string(), [&] {
    pieces = local_pieces(store, optimizer);
    shares = shares_of(pieces, replicas.size());
    for (const LocalPiece& piece : pieces) require_shape(reader, piece);
    read_pieces(reader, share(replicas.rank()));
  });
  for (int replica = 0; replica < replicas.size() && replicas.size() > 1; ++replica) {
    for (const LocalPiece& piece : share(replica)) {
      replicas.broadcast(piece.data.view(at::kByte), replica)->wait();
    }
  }
  if (optimizer != nullptr) optimizer->set_num_steps(reader.manifest().num_updates);
}

}  // namespace strata::checkpoint
