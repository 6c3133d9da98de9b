#include "strata/data/store/token_writer.h"

#include <cstring>

#include <xxhash.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"
#include "strata/base/xxh3.h"

namespace strata::data {
namespace {

template <typename T>
std::span<const T> one(const T& value) {
  return {&value, 1};
}

}  // namespace

uint64_t checksum_of(const ExampleView& row) {
  uint64_t hash = 0;
  for (const std::span<const int32_t> part : {row.ids, row.labels, row.lengths}) {
    hash = XXH3_64bits_withSeed(part.data(), part.size_bytes(), hash);
  }
  // Rows without one have the sum that they had when there was none: checkpoints know them by it.
  if (row.rating != Rating::kNone) hash = XXH3_64bits_withSeed(&row.rating, 1, hash);
  if (row.second_text != 0) hash = XXH3_64bits_withSeed(&row.second_text, sizeof(int32_t), hash);
  if (!row.row_targets.empty()) {
    hash = XXH3_64bits_withSeed(row.row_targets.data(), row.row_targets.size_bytes(), hash);
  }
  return hash;
}

void WaitingColumn::spill() {
  if (!writer_) {
    scratch_.emplace(scratch_path());
    writer_.emplace(*scratch_);
  }
  writer_->add(std::span<const char>(buffer_));
  buffer_.clear();
}

void WaitingColumn::drain(const std::function<void(std::span<const std::byte>)>& take) {
  if (writer_) {
    writer_->flush();
    const MappedFile waiting(scratch_->path());
    for (auto rest = waiting.data(); !rest.empty();) {
      const auto part = rest.first(std::min(kRoom, rest.size()));
      take(part);
      forget_pages(part);
      rest = rest.subspan(part.size());
    }
  }
  take(std::as_bytes(std::span<const char>(buffer_)));
}

TokenWriter::TokenWriter(const std::filesystem::path& path) : TokenWriter(FileWriter(path)) {}

TokenWriter::TokenWriter(const ScratchFile& file) : TokenWriter(FileWriter(file)) {}

TokenWriter::TokenWriter(FileWriter file) : file_(std::move(file)) {
  std::memcpy(header_.magic, kTokenFileMagic, sizeof kTokenFileMagic);
  file_.add(header_);
}

void TokenWriter::add(const ExampleView& row) {
  try {
    write(row);
  } catch (const IoError&) {
    has_failed_ = true;
    throw;
  }
}

void TokenWriter::write(const ExampleView& row) {
  file_.add(row.ids);
  file_.add(row.labels);
  ++header_.rows;
  header_.tokens += row.ids.size();
  header_.documents += row.lengths.size();
  header_.targets += row.row_targets.size();
  row_ends_.add(one(header_.tokens));
  document_ends_.add(one(header_.documents));
  target_ends_.add(one(header_.targets));
  checksums_.add(one(checksum_of(row)));
  lengths_.add(row.lengths);
  second_texts_.add(one(row.second_text));
  targets_.add(row.row_targets);
  ratings_.add(one(static_cast<uint8_t>(row.rating)));
}

void TokenWriter::finish(const DatasetStats& stats, bool syncs) {
  // Names of files need not be UTF-8.
  const std::string note =
      to_json(stats).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  header_.note_bytes = note.size();
  try {
    Xxh3 hash;
    const auto take = [&](std::span<const std::byte> part) {
      file_.add(part);
      hash.update(part);
    };
    for (auto* column : {&row_ends_, &document_ends_, &target_ends_, &checksums_, &lengths_,
                         &second_texts_, &targets_, &ratings_}) {
      column->drain(take);
    }
    take(std::as_bytes(std::span<const char>(note)));
    header_.checksum = hash.digest_64();
    file_.overwrite(0, std::as_bytes(one(header_)));
    if (syncs) file_.sync();
  } catch (const IoError&) {
    has_failed_ = true;
    throw;
  }
}

}  // namespace strata::data
