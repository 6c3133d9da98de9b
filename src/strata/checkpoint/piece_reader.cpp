#include "strata/checkpoint/piece_reader.h"

#include <algorithm>
#include <cstring>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::checkpoint {

PieceReader::PieceReader(std::filesystem::path folder)
    : folder_(std::move(folder)), manifest_(read_manifest(folder_)) {}

const TensorRecord& PieceReader::record(const std::string& tensor) const {
  const auto found = manifest_.tensors.find(tensor);
  if (found != manifest_.tensors.end()) return found->second;
  throw FormatError(
      "{}: found no tensor \"{}\", expected one for every trained weight; resume with the settings "
      "of the run that wrote it",
      folder_.string(), tensor);
}

void PieceReader::read(const std::string& tensor, int64_t begin, std::span<std::byte> out) {
  const TensorRecord& wanted = record(tensor);
  const auto dtype = hf::find_dtype(wanted.dtype);
  if (!dtype) {
    throw FormatError("{}: found \"{}\" of type {}, expected a known one; use another checkpoint",
                      folder_.string(), tensor, wanted.dtype);
  }
  const auto element = static_cast<int64_t>(hf::size_of(*dtype));
  const int64_t end = begin + static_cast<int64_t>(out.size()) / element;
  for (const PieceRecord& piece : wanted.pieces) {
    const int64_t first = std::max(piece.begin, begin);
    const int64_t last = std::min(piece.end, end);
    if (first >= last) continue;
    const std::span<const std::byte> bytes =
        proved(piece, wanted)
            .subspan(static_cast<size_t>((first - piece.begin) * element),
                     static_cast<size_t>((last - first) * element));
    std::memcpy(out.data() + (first - begin) * element, bytes.data(), bytes.size());
    forget_pages(bytes);
  }
}

std::span<const std::byte> PieceReader::proved(const PieceRecord& piece,
                                               const TensorRecord& record) {
  const hf::SafetensorsFile& file = open(piece.file);
  const hf::TensorInfo* info = file.find(piece.key);
  if (info == nullptr || info->numel() != piece.end - piece.begin ||
      hf::name_of(info->dtype) != record.dtype) {
    throw FormatError(
        "{}: found no tensor \"{}\" of {} elements of {}, expected what manifest.json lists; use "
        "another checkpoint",
        (folder_ / piece.file).string(), piece.key, piece.end - piece.begin, record.dtype);
  }
  const std::span<const std::byte> bytes = file.bytes(*info);
  if (proved_.contains({piece.file, piece.key})) return bytes;
  const std::string found = checksum(bytes.data(), bytes.size());
  if (found != piece.checksum) {
    throw FormatError(
        "{}: found checksum {} for \"{}\", expected {}; the file is damaged, use another "
        "checkpoint",
        (folder_ / piece.file).string(), found, piece.key, piece.checksum);
  }
  proved_.emplace(piece.file, piece.key);
  return bytes;
}

const hf::SafetensorsFile& PieceReader::open(const std::string& name) {
  auto found = files_.find(name);
  if (found == files_.end()) {
    found = files_.emplace(name, hf::SafetensorsFile(folder_ / name)).first;
  }
  return found->second;
}

std::string PieceReader::small_file(const std::string& name) const {
  const std::filesystem::path path = folder_ / name;
  const auto listed = manifest_.files.find(name);
  if (listed == manifest_.files.end()) {
    throw FormatError(
        "{}: found no such file in manifest.json, expected it; use another checkpoint",
        path.string());
  }
  std::string content = read_file(path);
  if (content.size() != listed->second.size_bytes ||
      checksum(content.data(), content.size()) != listed->second.checksum) {
    throw FormatError(
        "{}: found {} bytes with another checksum than manifest.json lists, expected {} bytes; the "
        "file is damaged, use another checkpoint",
        path.string(), content.size(), listed->second.size_bytes);
  }
  return content;
}

void PieceReader::verify_all() {
  for (const auto& [name, record] : manifest_.tensors) {
    for (const PieceRecord& piece : record.pieces) forget_pages(proved(piece, record));
  }
  for (const auto& [name, file] : manifest_.files) small_file(name);
}

}  // namespace strata::checkpoint
