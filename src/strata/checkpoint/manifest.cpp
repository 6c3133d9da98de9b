#include "strata/checkpoint/manifest.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/xxh3.h"
#include "strata/checkpoint/block_sums.h"

namespace strata::checkpoint {
namespace {

Json piece_json(const PieceRecord& piece) {
  Json json{{"file", piece.file},
            {"key", piece.key},
            {"begin", piece.begin},
            {"end", piece.end},
            {"xxh3", piece.checksum}};
  if (piece.offset != 0) json["offset"] = piece.offset;
  if (piece.block_bytes != 0) {
    json["blocks"] = Json{{"bytes", piece.block_bytes}, {"xxh3", piece.block_checksums}};
  }
  return json;
}

void check_tiling(const std::string& subject, const std::string& name, const TensorRecord& record) {
  int64_t numel = 1;
  for (int64_t size : record.shape) {
    if (size < 0 || __builtin_mul_overflow(numel, size, &numel)) numel = -1;
    if (numel < 0) break;
  }
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

// A name must not lead out of the folder.
const std::string& plain_name(const std::string& name, const std::string& subject) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    throw FormatError("{}: found the file name \"{}\", expected one inside the folder", subject,
                      name);
  }
  return name;
}

// A number that is no integer, or too large a one, is not cast to what it does not fit.
int64_t integer(const Json& value, const std::string& subject) {
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX);
  if (fits) return value.get<int64_t>();
  throw FormatError("{}: found {}, expected an integer; use another checkpoint", subject,
                    value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// The same of a file that may lie in a folder below ("additional_chat_templates/tools.jinja").
const std::string& inner_name(const std::string& name, const std::string& subject) {
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    plain_name(name.substr(at, end - at), subject);
    at = end + 1;
  }
  return name;
}

void read_blocks(const Json& json, const std::string& subject, PieceRecord& piece) {
  const int64_t bytes = integer(json.at("bytes"), subject);
  piece.block_checksums = json.at("xxh3").get<std::string>();
  if (bytes <= 0 || piece.block_checksums.size() % kSumDigits != 0) {
    throw FormatError(
        "{}: found blocks of {} bytes with {} digits, expected some bytes and {} digits for each "
        "block; use another checkpoint",
        subject, bytes, piece.block_checksums.size(), kSumDigits);
  }
  piece.block_bytes = static_cast<uint64_t>(bytes);
}

TensorRecord record_of(const Json& json, const std::string& subject) {
  TensorRecord record;
  for (const Json& size : json.at("shape").get_ref<const Json::array_t&>()) {
    record.shape.push_back(integer(size, subject));
  }
  record.dtype = json.at("dtype").get<std::string>();
  for (const Json& piece : json.at("pieces")) {
    record.pieces.push_back({plain_name(piece.at("file").get<std::string>(), subject),
                             piece.at("key").get<std::string>(),
                             integer(piece.at("begin"), subject), integer(piece.at("end"), subject),
                             piece.at("xxh3").get<std::string>(),
                             piece.contains("offset") ? integer(piece.at("offset"), subject) : 0});
    if (piece.contains("blocks")) read_blocks(piece.at("blocks"), subject, record.pieces.back());
  }
  return record;
}

void sort_pieces(TensorRecord& record) {
  std::sort(record.pieces.begin(), record.pieces.end(),
            [](const PieceRecord& a, const PieceRecord& b) { return a.begin < b.begin; });
}

// The last line of the text is the checksum of all before it.
constexpr std::string_view kChecksumKey = "\"checksum\": \"";

void check_checksum(std::string_view text, const std::string& subject) {
  const size_t at = text.rfind(kChecksumKey);
  const std::string_view stored =
      at == std::string_view::npos ? "" : text.substr(at + kChecksumKey.size());
  const std::string found = checksum(text.data(), std::min(at, text.size()));
  if (!stored.starts_with(found + "\"")) {
    throw FormatError(
        "{}: found a damaged manifest (its checksum is {}, not what its last line says), expected "
        "it as it was written; use another checkpoint",
        subject, found);
  }
}

// Before the checksum: another version may have it elsewhere or none.
void check_version(const Json& json, const std::string& subject) {
  if (json.at("format") != "strata-checkpoint" || json.at("version") != Manifest::kVersion) {
    throw FormatError(
        "{}: found format {} version {}, expected strata-checkpoint version {}; "
        "use the release that wrote it",
        subject, json.at("format").dump(), json.at("version").dump(), Manifest::kVersion);
  }
}

Manifest manifest_of(const Json& json, const std::string& subject) {
  Manifest manifest;
  manifest.world_size = static_cast<int>(integer(json.at("world_size"), subject));
  manifest.step = integer(json.at("step"), subject);
  manifest.num_updates = integer(json.at("num_updates"), subject);
  for (const auto& [name, file] : json.at("files").items()) {
    manifest.files[inner_name(name, subject)] = {
        static_cast<uint64_t>(integer(file.at("bytes"), subject)),
        file.at("xxh3").get<std::string>()};
  }
  for (const auto& [name, record] : json.at("tensors").items()) {
    TensorRecord& tensor = manifest.tensors[name] = record_of(record, subject);
    sort_pieces(tensor);
    check_tiling(subject, name, tensor);
  }
  return manifest;
}

}  // namespace

Json tensors_json(const std::map<std::string, TensorRecord>& tensors) {
  Json json = Json::object();
  for (const auto& [name, record] : tensors) {
    Json pieces = Json::array();
    for (const PieceRecord& piece : record.pieces) pieces.push_back(piece_json(piece));
    json[name] = Json{{"shape", record.shape}, {"dtype", record.dtype}, {"pieces", pieces}};
  }
  return json;
}

void add_tensors(const Json& tensors, const std::string& subject, Manifest& manifest) {
  for (const auto& [name, json] : tensors.items()) {
    TensorRecord part = record_of(json, subject);
    TensorRecord& whole = manifest.tensors[name];
    if (whole.pieces.empty()) {
      whole = std::move(part);
      continue;
    }
    if (whole.shape != part.shape || whole.dtype != part.dtype) {
      throw FormatError(
          "{}: found \"{}\" as {} [{}], expected {} [{}] as on the other ranks; report this as a "
          "bug",
          subject, name, part.dtype, fmt::join(part.shape, ", "), whole.dtype,
          fmt::join(whole.shape, ", "));
    }
    whole.pieces.insert(whole.pieces.end(), part.pieces.begin(), part.pieces.end());
  }
}

std::string manifest_text(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = Json{{"bytes", file.size_bytes}, {"xxh3", file.checksum}};
  }
  std::string text = Json{{"format", "strata-checkpoint"},
                          {"version", Manifest::kVersion},
                          {"world_size", manifest.world_size},
                          {"step", manifest.step},
                          {"num_updates", manifest.num_updates},
                          {"files", files},
                          {"tensors", tensors_json(manifest.tensors)}}
                         .dump(1);
  text.resize(text.size() - 2);  // the closing brace and its line
  text += ",\n ";
  text += std::string(kChecksumKey) + checksum(text.data(), text.size()) + "\"\n}\n";
  return text;
}

Manifest parse_manifest(std::string_view text, const std::string& subject) {
  const Json json = parse_json(text, subject);
  try {
    check_version(json, subject);
    check_checksum(text, subject);
    return manifest_of(json, subject);
  } catch (const Json::exception& e) {
    throw FormatError(
        "{}: found a damaged manifest ({}), expected every field of the format; use "
        "another checkpoint",
        subject, e.what());
  }
}

// Of a folder without manifest.json what it is, where it is something.
static void refuse_other_folder(const std::filesystem::path& folder) {
  const auto holds = [&](const char* name) { return std::filesystem::exists(folder / name); };
  if (holds("trainer_state.json")) {
    throw FormatError(
        "{}: found a checkpoint of another program (no manifest.json), expected one of this one; "
        "make one of it with strata convert {} OUT --to strata and resume with --output_dir OUT",
        folder.string(), folder.string());
  }
  const bool is_model = holds("config.json");
  if (!is_model && !holds("adapter_config.json")) return;
  throw FormatError(
      "{}: found {} without the state of a run, expected a checkpoint-N folder; to train on from "
      "its weights name it in {}",
      folder.string(), is_model ? "a model" : "an adapter",
      is_model ? "model_name_or_path" : "adapter_name_or_path");
}

Manifest read_manifest(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) {
    throw IoError("{}: found no such folder, expected a checkpoint; check resume_from_checkpoint",
                  folder.string());
  }
  const std::filesystem::path path = folder / "manifest.json";
  if (!std::filesystem::exists(path)) refuse_other_folder(folder);
  return parse_manifest(read_file(path), path.string());
}

std::string checksum(const void* data, size_t size_bytes) {
  Xxh3 hash;
  hash.update({static_cast<const std::byte*>(data), size_bytes});
  return hash.text_64();
}

}  // namespace strata::checkpoint
