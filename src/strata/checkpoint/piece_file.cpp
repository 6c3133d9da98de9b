#include "strata/checkpoint/piece_file.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "strata/base/file.h"
#include "strata/base/xxh3.h"
#include "strata/checkpoint/element_type.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

// What the checksum reads the processor's cache still has when it is copied to the writer's block.
constexpr size_t kCachedBytes = size_t{256} << 10;

// Of state that is stored in files, how much of the map a save keeps in memory at most.
constexpr size_t kMappedBytes = size_t{4} << 20;
constexpr size_t kLargestPage = size_t{64} << 10;

}  // namespace

std::span<std::byte> flat_bytes(const at::Tensor& flat) {
  return {static_cast<std::byte*>(flat.data_ptr()), flat.nbytes()};
}

std::string rank_file(int rank) { return fmt::format("rank-{:05d}.safetensors", rank); }

fs::path part_path(const fs::path& folder, int rank) {
  return folder / fmt::format("rank-{:05d}.json", rank);
}

void write_part(const fs::path& folder, int rank, const ManifestPart& part, FileSystem& files) {
  write_file_atomically(part_path(folder, rank), tensors_json(part).dump(), files);
}

TensorRecord record_of(const LocalPiece& piece) {
  TensorRecord record;
  record.shape = piece.shape;
  record.dtype = std::string(hf::name_of(file_type_of(piece.data.scalar_type())));
  record.pieces = {{"", piece.tensor, piece.begin, piece.begin + piece.data.numel(), ""}};
  return record;
}

PieceFile::PieceFile(std::string name, std::unique_ptr<hf::SafetensorsWriter> writer)
    : name_(std::move(name)), writer_(std::move(writer)) {}

void PieceFile::add(const LocalPiece& piece, std::string key, int64_t offset, bool is_listed) {
  pieces_.push_back({&piece, std::move(key), offset, is_listed});
}

void PieceFile::write(const PieceWriting& how, ManifestPart& part) {
  std::unordered_map<std::string_view, size_t> places;
  for (const hf::TensorInfo& info : writer_->tensors()) places.emplace(info.name, places.size());
  std::ranges::stable_sort(pieces_, {},
                           [&](const Part& p) { return std::pair(places.at(p.key), p.offset); });
  uint64_t bytes = 0;
  for (const Part& p : pieces_) bytes += p.piece->data.nbytes();
  if (bytes >= how.streamed.bytes) writer_->stream(how.streamed.block_bytes);
  for (const Part& p : pieces_) {
    TensorRecord record = record_of(*p.piece);
    PieceRecord& piece = record.pieces[0];
    piece.file = name_;
    piece.key = p.key;
    piece.offset = p.offset;
    if (p.piece->data.nbytes() > how.block_bytes) piece.block_bytes = how.block_bytes;
    write_one(p, piece);
    if (p.is_listed) part.emplace(p.piece->tensor, std::move(record));
  }
  writer_->finish();
}

void PieceFile::write_one(const Part& p, PieceRecord& record) {
  const at::Tensor host = p.piece->data.cpu();
  const auto begin = static_cast<uint64_t>(p.offset) * host.element_size();
  const std::span<const std::byte> all = flat_bytes(host);
  Xxh3 sum;
  std::optional<BlockSums> blocks;
  if (record.block_bytes > 0) blocks.emplace(record.block_bytes);
  size_t forgotten = 0;
  for (size_t done = 0; done < all.size();) {
    const auto some = all.subspan(done, std::min(all.size() - done, kCachedBytes));
    sum.update(some);
    if (blocks) blocks->update(some);
    writer_->write(p.key, some, begin + done);
    done += some.size();
    // What is stored in a file is there because memory has no room for it.
    if (!p.piece->rests_in_file || (done - forgotten < kMappedBytes && done < all.size())) {
      continue;
    }
    forget_pages(all.subspan(forgotten, done - forgotten));
    forgotten = done - std::min<size_t>(done, kLargestPage);  // of its last page only a part
  }
  record.checksum = sum.text_64();
  if (blocks) record.block_checksums = blocks->take();
}

}  // namespace strata::checkpoint
