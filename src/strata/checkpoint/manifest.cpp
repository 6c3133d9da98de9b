#include "strata/checkpoint/manifest.h"

#include <algorithm>

#include <xxhash.h>

#include "strata/base/error.h"

namespace strata::checkpoint {
namespace {

Json piece_json(const PieceRecord& piece) {
  return Json{{"file", piece.file},
              {"key", piece.key},
              {"begin", piece.begin},
              {"end", piece.end},
              {"xxh3", piece.checksum}};
}

void check_tiling(const std::string& subject, const std::string& name, const TensorRecord& record) {
  int64_t numel = 1;
  for (int64_t size : record.shape) numel *= size;
  int64_t covered = 0;
  for (const PieceRecord& piece : record.pieces) {
    if (piece.begin != covered || piece.end <= piece.begin) break;
    covered = piece.end;
  }
  if (covered != numel) {
    throw FormatError(
        "{}: found pieces of \"{}\" that cover {} of {} elements, expected all once; "
        "use another checkpoint",
        subject, name, covered, numel);
  }
}

TensorRecord record_of(const Json& json) {
  TensorRecord record;
  record.shape = json.at("shape").get<std::vector<int64_t>>();
  record.dtype = json.at("dtype").get<std::string>();
  for (const Json& piece : json.at("pieces")) {
    record.pieces.push_back({piece.at("file").get<std::string>(),
                             piece.at("key").get<std::string>(), piece.at("begin").get<int64_t>(),
                             piece.at("end").get<int64_t>(), piece.at("xxh3").get<std::string>()});
  }
  std::sort(record.pieces.begin(), record.pieces.end(),
            [](const PieceRecord& a, const PieceRecord& b) { return a.begin < b.begin; });
  return record;
}

}  // namespace

Json to_json(const Manifest& manifest) {
  Json tensors = Json::object();
  for (const auto& [name, record] : manifest.tensors) {
    Json pieces = Json::array();
    for (const PieceRecord& piece : record.pieces) pieces.push_back(piece_json(piece));
    tensors[name] = Json{{"shape", record.shape}, {"dtype", record.dtype}, {"pieces", pieces}};
  }
  return Json{{"format", "strata-checkpoint"},
              {"version", Manifest::kVersion},
              {"world_size", manifest.world_size},
              {"step", manifest.step},
              {"tensors", tensors}};
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "manifest.json";
  if (!std::filesystem::is_directory(folder)) {
    throw IoError("{}: found no such folder, expected a checkpoint; check resume_from_checkpoint",
                  folder.string());
  }
  const Json json = read_json_file(path);
  const std::string subject = path.string();
  try {
    if (json.at("format") != "strata-checkpoint" || json.at("version") != Manifest::kVersion) {
      throw FormatError(
          "{}: found format {} version {}, expected strata-checkpoint version {}; "
          "use the release that wrote it",
          subject, json.at("format").dump(), json.at("version").dump(), Manifest::kVersion);
    }
    Manifest manifest;
    manifest.world_size = json.at("world_size").get<int>();
    manifest.step = json.at("step").get<int64_t>();
    for (const auto& [name, record] : json.at("tensors").items()) {
      manifest.tensors[name] = record_of(record);
      check_tiling(subject, name, manifest.tensors[name]);
    }
    return manifest;
  } catch (const Json::exception& e) {
    throw FormatError(
        "{}: found a damaged manifest ({}), expected every field of the format; use "
        "another checkpoint",
        subject, e.what());
  }
}

std::string checksum(const void* data, size_t size_bytes) {
  return fmt::format("{:016x}", XXH3_64bits(data, size_bytes));
}

}  // namespace strata::checkpoint
