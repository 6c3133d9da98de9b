#include "strata/checkpoint/whole_files.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/element_type.h"
#include "strata/checkpoint/piece_reader.h"
#include "strata/hf/formats/safetensors.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

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

// What does not train is rank 0's to write.
std::vector<LocalPiece> fixed_pieces(const WholeFiles& whole, int rank) {
  std::vector<LocalPiece> pieces;
  if (rank != 0) return pieces;
  for (const auto& [key, tensor] : whole.fixed) {
    pieces.push_back({key, tensor.sizes().vec(), 0, tensor.contiguous().view({-1})});
  }
  return pieces;
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

}  // namespace

void announce_pieces(const fs::path& folder, int rank, const std::vector<LocalPiece>& pieces,
                     FileSystem& files) {
  ManifestPart part;
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

void write_whole_files(const fs::path& folder, const WholeFiles& whole, int rank,
                       const std::vector<LocalPiece>& pieces, const PieceWriting& how,
                       FileSystem& files) {
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
  ManifestPart part;
  for (auto& [name, own] : open) own.write(how, part);
  write_part(folder, rank, part, files);
}

void read_back_whole_files(const fs::path& folder, const WholeFiles& whole, Trained trained) {
  const hf::SafetensorsFile saved(folder / whole.weights);
  if (saved.metadata() != whole.metadata) throw_unlike(saved, "other metadata", "what was written");
  PieceReader reader(folder);
  ZeroCheck zeros(trained);
  size_t num_expected = whole.fixed.size();
  for (const auto& [name, record] : reader.manifest().tensors) {
    const WholePlace place = whole_place(whole, name);
    if (place.file != whole.weights) continue;
    num_expected += place.keys.size();
    const hf::DType dtype = hf::parse_dtype(record.dtype);
    const auto first = saved_bytes(saved, place.keys[0], dtype, record.shape);
    if (zeros.refuses(place.keys[0], record.shape, reader.is_zero(name))) {
      throw_zeros(saved.path(), fmt::format("\"{}\"", place.keys[0]));
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
    require_same(saved, key, found, flat_bytes(host));
  }
  if (const std::string name = zeros.untrained(); !name.empty()) {
    throw_zeros(saved.path(), matrices_like(name));
  }
  if (saved.tensors().size() != num_expected) {
    throw_unlike(saved, fmt::format("{} tensors", saved.tensors().size()),
                 fmt::format("{}", num_expected));
  }
}

}  // namespace strata::checkpoint
