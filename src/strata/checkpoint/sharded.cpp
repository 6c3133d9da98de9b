#include "strata/checkpoint/sharded.h"

#include <charconv>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/element_type.h"
#include "strata/checkpoint/manifest.h"
#include "strata/comm/agreement.h"
#include "strata/hf/safetensors.h"
#include "strata/shard/loading.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

// One piece of one saved tensor on this rank.
struct LocalPiece {
  std::string tensor;          // "exp_avg/model.norm.weight"
  std::vector<int64_t> shape;  // of the whole
  int64_t begin;
  at::Tensor data;  // flat view of the home or of the optimizer's state
};

std::vector<LocalPiece> local_pieces(shard::UnitStore& store, optim::Optimizer* optimizer) {
  const int rank = store.mesh().shard->rank();
  std::vector<LocalPiece> pieces;
  for (int u = 0; u < store.num_units(); ++u) {
    const auto& segments = store.unit(u).segments;
    for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
      if (!segments[static_cast<size_t>(s)].trainable) continue;
      for (const shard::Piece& piece : shard::pieces_of(segments[static_cast<size_t>(s)], rank)) {
        pieces.push_back({"parameter/" + piece.parameter->name(), piece.parameter->shape(),
                          piece.tensor_begin,
                          store.home(u, s).value.narrow(0, piece.shard_begin, piece.length)});
      }
    }
  }
  if (optimizer == nullptr) return pieces;
  for (optim::StateTensor& state : optimizer->state()) {
    pieces.push_back({state.name + "/" + state.parameter->name(), std::move(state.shape),
                      state.begin, std::move(state.data)});
  }
  return pieces;
}

std::span<const std::byte> bytes_of(const at::Tensor& flat) {
  return {static_cast<const std::byte*>(flat.data_ptr()), flat.nbytes()};
}

// This rank's tensors and a part of the manifest that lists them.
void write_rank_file(const fs::path& folder, int rank, const std::vector<LocalPiece>& pieces) {
  const std::string file = fmt::format("rank-{:05d}.safetensors", rank);
  std::vector<hf::TensorSpec> specs;
  for (const LocalPiece& piece : pieces) {
    specs.push_back({piece.tensor, file_type_of(piece.data.scalar_type()), {piece.data.numel()}});
  }
  hf::SafetensorsWriter writer(folder / file, specs, {{"format", "strata"}});
  Manifest part;
  for (const LocalPiece& piece : pieces) {
    const at::Tensor host = piece.data.cpu();
    writer.write(piece.tensor, bytes_of(host));
    TensorRecord& record = part.tensors[piece.tensor];
    record.shape = piece.shape;
    record.dtype = std::string(hf::name_of(file_type_of(host.scalar_type())));
    record.pieces = {{file, piece.tensor, piece.begin, piece.begin + host.numel(),
                      checksum(host.data_ptr(), host.nbytes())}};
  }
  writer.finish();
  write_file_atomically(folder / fmt::format("rank-{:05d}.json", rank), to_json(part).dump());
}

// Rank 0 joins the parts; they served only to reach it.
void write_manifest(const fs::path& folder, int shard_ranks, int world_size, int64_t step) {
  Manifest manifest;
  manifest.world_size = world_size;
  manifest.step = step;
  for (int rank = 0; rank < shard_ranks; ++rank) {
    const fs::path part = folder / fmt::format("rank-{:05d}.json", rank);
    const Json json = read_json_file(part);
    for (const auto& [name, tensor] : json.at("tensors").items()) {
      TensorRecord& record = manifest.tensors[name];
      record.shape = tensor.at("shape").get<std::vector<int64_t>>();
      record.dtype = tensor.at("dtype").get<std::string>();
      for (const Json& p : tensor.at("pieces")) {
        record.pieces.push_back({p.at("file").get<std::string>(), p.at("key").get<std::string>(),
                                 p.at("begin").get<int64_t>(), p.at("end").get<int64_t>(),
                                 p.at("xxh3").get<std::string>()});
      }
    }
    fs::remove(part);
  }
  write_file_atomically(folder / "manifest.json", to_json(manifest).dump(1) + "\n");
}

// The step of "checkpoint-12", or -1.
int64_t step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  constexpr std::string_view kPrefix = "checkpoint-";
  if (!name.starts_with(kPrefix)) return -1;
  int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && stop == end ? step : -1;
}

class Reader {
 public:
  Reader(const fs::path& folder, const Manifest& manifest) : folder_(folder), manifest_(manifest) {}

  void read(const LocalPiece& wanted) {
    const auto found = manifest_.tensors.find(wanted.tensor);
    if (found == manifest_.tensors.end()) {
      throw FormatError(
          "{}: found no tensor \"{}\", expected one for every trained weight; resume "
          "with the settings of the run that wrote it",
          folder_.string(), wanted.tensor);
    }
    const TensorRecord& record = found->second;
    if (record.shape != wanted.shape) {
      throw FormatError(
          "{}: found \"{}\" of shape [{}], expected [{}]; resume with the settings of "
          "the run that wrote it",
          folder_.string(), wanted.tensor, fmt::join(record.shape, ", "),
          fmt::join(wanted.shape, ", "));
    }
    const int64_t end = wanted.begin + wanted.data.numel();
    for (const PieceRecord& piece : record.pieces) {
      const int64_t first = std::max(piece.begin, wanted.begin);
      const int64_t last = std::min(piece.end, end);
      if (first < last) copy(piece, record, first, last, wanted);
    }
  }

 private:
  void copy(const PieceRecord& piece, const TensorRecord& record, int64_t first, int64_t last,
            const LocalPiece& wanted) {
    const hf::SafetensorsFile& file = open(piece.file);
    const hf::TensorInfo* info = file.find(piece.key);
    if (info == nullptr || info->numel() != piece.end - piece.begin ||
        hf::name_of(info->dtype) != record.dtype) {
      throw FormatError(
          "{}: found no tensor \"{}\" of {} elements, expected what manifest.json "
          "lists; use another checkpoint",
          (folder_ / piece.file).string(), piece.key, piece.end - piece.begin);
    }
    const std::span<const std::byte> bytes = file.bytes(*info);
    const std::string found = checksum(bytes.data(), bytes.size());
    if (found != piece.checksum) {
      throw FormatError(
          "{}: found checksum {} for \"{}\", expected {}; the file is damaged, use "
          "another checkpoint",
          (folder_ / piece.file).string(), found, piece.key, piece.checksum);
    }
    const at::ScalarType type = memory_type_of(info->dtype);
    const at::ScalarType wanted_type = wanted.data.scalar_type();
    // Another precision is a conversion; codes of a quantised state are not numbers to convert.
    if (type != wanted_type && !(at::isFloatingType(type) && at::isFloatingType(wanted_type))) {
      throw FormatError(
          "{}: found \"{}\" of type {}, expected {}; resume with the settings of the run that "
          "wrote "
          "it",
          folder_.string(), wanted.tensor, record.dtype, hf::name_of(file_type_of(wanted_type)));
    }
    at::Tensor part = at::empty({last - first}, at::TensorOptions().dtype(type));
    std::memcpy(part.data_ptr(),
                bytes.data() + static_cast<size_t>(first - piece.begin) * hf::size_of(info->dtype),
                part.nbytes());
    wanted.data.narrow(0, first - wanted.begin, last - first).copy_(part);
  }

  const hf::SafetensorsFile& open(const std::string& name) {
    auto found = files_.find(name);
    if (found == files_.end())
      found = files_.emplace(name, hf::SafetensorsFile(folder_ / name)).first;
    return found->second;
  }

  fs::path folder_;
  const Manifest& manifest_;
  std::map<std::string, hf::SafetensorsFile> files_;
};

}  // namespace

fs::path save(const fs::path& output_dir, int64_t step, shard::UnitStore& store,
              optim::Optimizer* optimizer, const SmallFiles& small_files) {
  comm::Mesh& mesh = store.mesh();
  comm::Group& world = *mesh.world;
  const fs::path final_path = output_dir / fmt::format("checkpoint-{}", step);
  const std::string what = "saving " + final_path.filename().string();
  std::optional<AtomicFolder> folder;
  std::string temporary;
  comm::all_or_nothing(world, what, [&] {
    if (world.rank() != 0) return;
    folder.emplace(final_path);
    temporary = folder->path().string();
  });
  temporary = comm::broadcast_string(world, temporary);
  comm::all_or_nothing(world, what, [&] {
    if (mesh.replicate->rank() != 0) return;  // replicas hold the same
    write_rank_file(temporary, mesh.shard->rank(), local_pieces(store, optimizer));
  });
  comm::all_or_nothing(world, what, [&] {
    if (world.rank() != 0) return;
    write_manifest(temporary, mesh.shard->size(), world.size(), step);
    for (const auto& [name, content] : small_files) {
      write_file_atomically(fs::path(temporary) / name, content);
    }
    folder->commit();
    write_file_atomically(output_dir / "latest", final_path.filename().string() + "\n");
  });
  return final_path;
}

void load(const fs::path& folder, shard::UnitStore& store, optim::Optimizer* optimizer) {
  comm::all_or_nothing(*store.mesh().world, "loading " + folder.string(), [&] {
    const Manifest manifest = read_manifest(folder);
    Reader reader(folder, manifest);
    for (const LocalPiece& piece : local_pieces(store, optimizer)) reader.read(piece);
    if (optimizer != nullptr) optimizer->set_num_steps(manifest.step);
  });
}

std::vector<fs::path> list(const fs::path& output_dir) {
  std::vector<fs::path> found;
  if (!fs::is_directory(output_dir)) return found;
  for (const auto& entry : fs::directory_iterator(output_dir)) {
    if (step_of(entry.path()) >= 0 && fs::exists(entry.path() / "manifest.json")) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return step_of(a) < step_of(b); });
  return found;
}

fs::path resolve(const std::string& resume_from, const fs::path& output_dir) {
  if (resume_from != "true" && resume_from != "True") return resume_from;
  const std::vector<fs::path> found = list(output_dir);
  if (found.empty()) {
    throw ConfigError(
        "resume_from_checkpoint: no valid checkpoint found in output directory ({}), "
        "expected a checkpoint-N folder; drop the flag to start anew",
        output_dir.string());
  }
  return found.back();
}

void rotate(const fs::path& output_dir, int64_t limit, const std::optional<fs::path>& keep) {
  std::vector<fs::path> found = list(output_dir);
  int64_t surplus = static_cast<int64_t>(found.size()) - std::max<int64_t>(limit, 1);
  for (size_t i = 0; i + 1 < found.size() && surplus > 0; ++i) {
    if (keep && fs::equivalent(found[i], *keep)) continue;
    // Renamed first: a folder that is half removed must not look like a checkpoint.
    const fs::path doomed = found[i].string() + ".tmp-removed";
    fs::rename(found[i], doomed);
    fs::remove_all(doomed);
    --surplus;
  }
}

}  // namespace strata::checkpoint
