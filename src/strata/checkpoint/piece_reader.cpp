#include "strata/checkpoint/piece_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::checkpoint {
namespace {

// Small enough to be in the processor's cache when it is summed up.
constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

}  // namespace

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
    read_piece(piece, wanted, static_cast<uint64_t>((first - piece.begin) * element),
               out.subspan(static_cast<size_t>((first - begin) * element),
                           static_cast<size_t>((last - first) * element)));
  }
}

PieceReader::Range PieceReader::range_of(const PieceRecord& piece, const TensorRecord& record) {
  const OpenFile& file = open(piece.file);
  const hf::TensorInfo* info = file.layout.find(piece.key);
  const int64_t count = piece.end - piece.begin;
  if (info == nullptr || piece.offset < 0 || piece.offset > info->numel() ||
      count > info->numel() - piece.offset || hf::name_of(info->dtype) != record.dtype) {
    throw FormatError(
        "{}: found no tensor \"{}\" of {} elements of {}, expected what manifest.json lists; use "
        "another checkpoint",
        (folder_ / piece.file).string(), piece.key, count, record.dtype);
  }
  const uint64_t element = hf::size_of(info->dtype);
  return {&file, file.layout.file_offset(*info) + static_cast<uint64_t>(piece.offset) * element,
          static_cast<uint64_t>(count) * element};
}

// Read with calls, not through a map: the kernel reads ahead, no page is faulted in one by one, and
// a file that somebody cuts short meanwhile is an error and no signal.
void PieceReader::fetch(const Range& range, uint64_t begin, std::span<std::byte> out) const {
  size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t count =
        ::pread(range.file->descriptor.get(), out.data() + filled, out.size() - filled,
                static_cast<off_t>(range.begin + begin + filled));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw IoError(
          "{}: found {} at byte {}, expected {} more; the disk or the file is damaged, use another "
          "checkpoint",
          range.file->layout.path().string(), count == 0 ? "its end" : errno_text(errno),
          range.begin + begin + filled, out.size() - filled);
    }
    filled += static_cast<size_t>(count);
  }
}

void PieceReader::read_piece(const PieceRecord& piece, const TensorRecord& record, uint64_t skip,
                             std::span<std::byte> out) {
  const Range range = range_of(piece, record);
  const std::tuple key{piece.file, piece.key, piece.offset};
  if (proved_.contains(key)) {
    fetch(range, skip, out);
    return;
  }
  Checksum sum;
  const auto pass = [&](uint64_t begin, std::span<std::byte> to) {
    fetch(range, begin, to);
    sum.update(to);
  };
  for (uint64_t at = 0; at < range.size;) {
    const bool is_wanted = at >= skip && at < skip + out.size();
    const uint64_t stop = at < skip ? skip : is_wanted ? skip + out.size() : range.size;
    const uint64_t size = std::min(kBlockBytes, stop - at);
    if (!is_wanted && block_.empty()) block_.resize(kBlockBytes);
    pass(at, is_wanted ? out.subspan(at - skip, size) : std::span(block_).first(size));
    at += size;
  }
  if (const std::string found = sum.text(); found != piece.checksum) {
    throw FormatError(
        "{}: found checksum {} for \"{}\", expected {}; the file is damaged, use another "
        "checkpoint",
        (folder_ / piece.file).string(), found, piece.key, piece.checksum);
  }
  proved_.insert(key);
}

const PieceReader::OpenFile& PieceReader::open(const std::string& name) {
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  const std::filesystem::path path = folder_ / name;
  hf::SafetensorsFile layout(path);
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (descriptor.get() < 0) {
    throw IoError("{}: found {}, expected a readable file; check its permissions", path.string(),
                  errno_text(errno));
  }
  ::posix_fadvise(descriptor.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  return files_.emplace(name, OpenFile{std::move(layout), std::move(descriptor)}).first->second;
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
    for (const PieceRecord& piece : record.pieces) read_piece(piece, record, 0, {});
  }
  for (const auto& [name, file] : manifest_.files) small_file(name);
}

}  // namespace strata::checkpoint
