#include "strata/data/store/token_store.h"

#include <algorithm>
#include <cstring>

#include <xxhash.h>

#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/base/xxh3.h"

namespace strata::data {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& found) {
  throw FormatError("{}: found {}, expected a whole file of tokens; remove it", path.string(),
                    found);
}

}  // namespace

TokenStore::TokenStore(Dataset dataset) : stats_(dataset) {
  rows_ = std::make_shared<const std::vector<Example>>(std::move(dataset.rows));
}

int64_t TokenStore::num_tokens(size_t row) const {
  if (rows_ != nullptr) return static_cast<int64_t>((*rows_)[row].ids.size());
  return static_cast<int64_t>(row_ends_[row] - (row == 0 ? 0 : row_ends_[row - 1]));
}

int64_t TokenStore::num_own_tokens(size_t row) const {
  const Rating rating =
      rows_ != nullptr ? (*rows_)[row].rating : static_cast<Rating>(ratings_[row]);
  return rating == Rating::kNone ? num_tokens(row) : lengths(row)[0];
}

std::span<const int32_t> TokenStore::lengths(size_t row) const {
  if (rows_ != nullptr) return (*rows_)[row].lengths;
  const uint64_t document = row == 0 ? 0 : document_ends_[row - 1];
  return lengths_.subspan(document, document_ends_[row] - document);
}

// Pages that were read count as the process's memory until they are forgotten, although the system
// could take them back at any time. It maps others around each.
void TokenStore::forget_some(uint64_t read_bytes) const {
  constexpr uint64_t kAround = uint64_t{1} << 16, kSpare = uint64_t{1} << 25;
  if (mapped_bytes_->fetch_add(read_bytes + kAround) + read_bytes + kAround < kSpare) return;
  mapped_bytes_->store(0);
  forget_pages(file_->data());
}

ExampleView TokenStore::operator[](size_t row) const {
  if (rows_ != nullptr) return (*rows_)[row];
  const uint64_t token = row == 0 ? 0 : row_ends_[row - 1];
  const uint64_t size = row_ends_[row] - token;
  ExampleView view = {tokens_.subspan(2 * token, size), tokens_.subspan(2 * token + size, size),
                      lengths(row), static_cast<Rating>(ratings_[row])};
  view.second_text = second_texts_[row];
  const uint64_t target = row == 0 ? 0 : target_ends_[row - 1];
  view.row_targets = targets_.subspan(target, target_ends_[row] - target);
  forget_some(view.ids.size_bytes() + view.labels.size_bytes());
  if (checksum_of(view) != checksums_[row]) {
    refuse(path_, fmt::format("row {} not as it was written", row));
  }
  return view;
}

std::string TokenStore::content() const {
  Xxh3 hash;
  if (rows_ == nullptr) hash.update(std::as_bytes(checksums_));
  for (size_t i = 0; rows_ != nullptr && i < rows_->size(); ++i) {
    const uint64_t checksum = checksum_of((*rows_)[i]);
    hash.update(std::as_bytes(std::span(&checksum, 1)));
  }
  return hash.text_64();
}

void TokenStore::check_rows() const {
  for (size_t i = 0; i < size(); ++i) (*this)[i];
}

void TokenStore::read(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  TokenFileHeader header = {};
  if (bytes.size() >= sizeof header) std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, kTokenFileMagic, sizeof kTokenFileMagic) != 0) {
    refuse(path, "another format");
  }
  constexpr uint64_t kLimit = uint64_t{1} << 56;
  const bool is_sane = header.note_bytes < kLimit && header.rows < kLimit &&
                       header.documents < kLimit && header.tokens < kLimit &&
                       header.targets < kLimit;
  const uint64_t expected = sizeof header + 8 * header.tokens + 37 * header.rows +
                            4 * header.documents + 4 * header.targets + header.note_bytes;
  if (!is_sane || bytes.size() != expected) refuse(path, fmt::format("{} bytes", bytes.size()));
  const auto index = bytes.subspan(sizeof header + 8 * header.tokens);
  if (XXH3_64bits(index.data(), index.size()) != header.checksum) {
    refuse(path, "an index that is not as it was written");
  }
  const std::byte* at = bytes.data() + sizeof header;
  const auto take = [&at]<typename T>(T, uint64_t count) {
    const std::span<const T> part(reinterpret_cast<const T*>(at), count);
    at += part.size_bytes();
    return part;
  };
  tokens_ = take(int32_t{}, 2 * header.tokens);
  row_ends_ = take(uint64_t{}, header.rows);
  document_ends_ = take(uint64_t{}, header.rows);
  target_ends_ = take(uint64_t{}, header.rows);
  checksums_ = take(uint64_t{}, header.rows);
  lengths_ = take(int32_t{}, header.documents);
  second_texts_ = take(int32_t{}, header.rows);
  targets_ = take(float{}, header.targets);
  ratings_ = take(uint8_t{}, header.rows);
  const auto is_unknown = [](uint8_t rating) { return rating > uint8_t(Rating::kDesirable); };
  if (std::ranges::any_of(ratings_, is_unknown)) refuse(path, "an unknown rating");
  const auto note = take(char{}, header.note_bytes);
  try {
    stats_ = stats_from_json(parse_json({note.data(), note.size()}, path.string()));
  } catch (const nlohmann::json::exception&) {
    refuse(path, "incomplete statistics");
  }
}

void TokenStore::check_positions(const std::filesystem::path& path) const {
  uint64_t token = 0, document = 0, target = 0;
  for (size_t i = 0; i < row_ends_.size(); ++i) {
    if (row_ends_[i] < token || document_ends_[i] < document || target_ends_[i] < target) {
      refuse(path, "positions out of order");
    }
    token = row_ends_[i];
    document = document_ends_[i];
    target = target_ends_[i];
  }
  if (2 * token > tokens_.size() || document > lengths_.size() || target > targets_.size()) {
    refuse(path, "positions out of order");
  }
}

TokenStore TokenStore::map(const std::filesystem::path& path) {
  auto file = std::make_shared<const MappedFile>(path);
  TokenStore store;
  store.read(path, file->data());
  store.check_positions(path);
  store.file_ = std::move(file);
  store.path_ = path;
  store.mapped_bytes_ = std::make_shared<std::atomic<uint64_t>>(0);
  return store;
}

void TokenStore::remove_at_end() {
  at_end_ = std::shared_ptr<const void>(nullptr, [path = path_](const void*) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  });
}

TokenStore TokenStore::scratch(const std::function<DatasetStats(TokenWriter&)>& make,
                               const std::filesystem::path& folder) {
  const ScratchFile file(folder);
  TokenWriter writer(file);
  writer.finish(make(writer), /*syncs=*/false);
  return map(file.path());
}

}  // namespace strata::data
