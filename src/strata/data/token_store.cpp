#include "strata/data/token_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"

namespace strata::data {
namespace {

constexpr char kMagic[8] = {'S', 'T', 'R', 'A', 'T', 'O', 'K', '1'};

struct Header {
  char magic[8];
  uint64_t note_bytes;  // of the JSON with the statistics, a multiple of 8
  uint64_t rows;
  uint64_t documents;
  uint64_t tokens;
};

Json stats_to_json(const DatasetStats& stats) {
  return {{"num_sources", stats.num_sources},
          {"num_dropped", stats.num_dropped},
          {"num_long", stats.num_long},
          {"num_bad_rows", stats.bad_rows.count},
          {"first_bad_row", stats.bad_rows.first},
          {"num_tokens", stats.num_tokens},
          {"num_targets", stats.num_targets},
          {"num_split_prompts", stats.num_split_prompts}};
}

DatasetStats stats_from_json(const Json& json) {
  DatasetStats stats;
  stats.num_sources = json.at("num_sources").get<int64_t>();
  stats.num_dropped = json.at("num_dropped").get<int64_t>();
  stats.num_long = json.at("num_long").get<int64_t>();
  stats.bad_rows = {json.at("num_bad_rows").get<int64_t>(),
                    json.at("first_bad_row").get<std::string>()};
  stats.num_tokens = json.at("num_tokens").get<int64_t>();
  stats.num_targets = json.at("num_targets").get<int64_t>();
  stats.num_split_prompts = json.at("num_split_prompts").get<int64_t>();
  return stats;
}

// Writes piece after piece through a buffer.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path)
      : path_(std::move(path)), file_(::open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644)) {
    if (file_ < 0) refuse();
  }
  ~FileWriter() { ::close(file_); }
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  template <typename T>
  void add(std::span<const T> values) {
    const auto* bytes = reinterpret_cast<const char*>(values.data());
    buffer_.append(bytes, values.size_bytes());
    if (buffer_.size() >= kFlushBytes) flush();
  }
  template <typename T>
  void add(const T& value) {
    add(std::span<const T>(&value, 1));
  }
  void finish() {
    flush();
    if (::fsync(file_) != 0) refuse();
  }

 private:
  static constexpr size_t kFlushBytes = size_t{1} << 20;

  [[noreturn]] void refuse() const { throw IoError("{}: {}", path_.string(), errno_text(errno)); }
  void flush() {
    const auto bytes = std::as_bytes(std::span<const char>(buffer_));
    if (write_fully(file_, bytes, at_) != bytes.size()) refuse();
    at_ += bytes.size();
    buffer_.clear();
  }

  std::filesystem::path path_;
  int file_;
  uint64_t at_ = 0;
  std::string buffer_;
};

void write_content(const Dataset& dataset, const std::filesystem::path& path) {
  std::string note = stats_to_json(dataset).dump();
  note.resize((note.size() + 7) / 8 * 8, ' ');
  Header header = {.magic = {},
                   .note_bytes = note.size(),
                   .rows = dataset.rows.size(),
                   .documents = 0,
                   .tokens = 0};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  for (const Example& row : dataset.rows) {
    header.documents += row.lengths.size();
    header.tokens += row.ids.size();
  }
  FileWriter file(path);
  file.add(header);
  file.add(std::span<const char>(note));
  uint64_t end = 0;
  for (const Example& row : dataset.rows) file.add(end += row.ids.size());
  end = 0;
  for (const Example& row : dataset.rows) file.add(end += row.lengths.size());
  for (const auto column : {&Example::lengths, &Example::ids, &Example::labels}) {
    for (const Example& row : dataset.rows) file.add(std::span<const int32_t>(row.*column));
  }
  file.finish();
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& found) {
  throw FormatError("{}: found {}, expected a whole file of tokens; remove it", path.string(),
                    found);
}

// The parts of a mapped file.
struct Layout {
  const Header* header;
  std::string_view note;
  std::span<const uint64_t> row_ends, document_ends;
  std::span<const int32_t> lengths, ids, labels;
};

Layout find_parts(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.data();
  const auto* header = reinterpret_cast<const Header*>(bytes.data());
  if (bytes.size() < sizeof(Header) || std::memcmp(header->magic, kMagic, sizeof kMagic) != 0) {
    refuse(file.path(), "another format");
  }
  constexpr uint64_t kLimit = uint64_t{1} << 56;
  const bool is_sane = header->note_bytes < kLimit && header->rows < kLimit &&
                       header->documents < kLimit && header->tokens < kLimit;
  const uint64_t expected = sizeof(Header) + header->note_bytes + 16 * header->rows +
                            4 * header->documents + 8 * header->tokens;
  if (!is_sane || header->note_bytes % 8 != 0 || bytes.size() != expected) {
    refuse(file.path(), fmt::format("{} bytes", bytes.size()));
  }
  const std::byte* at = bytes.data() + sizeof(Header);
  const auto take = [&at]<typename T>(T, uint64_t count) {
    const std::span<const T> part(reinterpret_cast<const T*>(at), count);
    at += part.size_bytes();
    return part;
  };
  Layout layout{.header = header,
                .note = {},
                .row_ends = {},
                .document_ends = {},
                .lengths = {},
                .ids = {},
                .labels = {}};
  const auto note = take(char{}, header->note_bytes);
  layout.note = {note.data(), note.size()};
  layout.row_ends = take(uint64_t{}, header->rows);
  layout.document_ends = take(uint64_t{}, header->rows);
  layout.lengths = take(int32_t{}, header->documents);
  layout.ids = take(int32_t{}, header->tokens);
  layout.labels = take(int32_t{}, header->tokens);
  return layout;
}

}  // namespace

TokenStore::TokenStore(Dataset dataset) : stats_(dataset) {
  auto rows = std::make_shared<const std::vector<Example>>(std::move(dataset.rows));
  rows_.assign(rows->begin(), rows->end());
  memory_ = std::move(rows);
}

TokenStore TokenStore::map(const std::filesystem::path& path) {
  auto file = std::make_shared<const MappedFile>(path);
  const Layout layout = find_parts(*file);
  TokenStore store;
  try {
    store.stats_ = stats_from_json(parse_json(layout.note, path.string()));
  } catch (const nlohmann::json::exception&) {
    refuse(path, "incomplete statistics");
  }
  store.rows_.reserve(layout.header->rows);
  uint64_t token = 0, document = 0;
  for (uint64_t i = 0; i < layout.header->rows; ++i) {
    const uint64_t token_end = layout.row_ends[i], document_end = layout.document_ends[i];
    if (token_end < token || token_end > layout.header->tokens || document_end < document ||
        document_end > layout.header->documents) {
      refuse(path, "positions out of order");
    }
    store.rows_.emplace_back(layout.ids.subspan(token, token_end - token),
                             layout.labels.subspan(token, token_end - token),
                             layout.lengths.subspan(document, document_end - document));
    token = token_end;
    document = document_end;
  }
  store.memory_ = std::move(file);
  return store;
}

void write_tokens(const Dataset& dataset, const std::filesystem::path& path) {
  const std::filesystem::path temporary =
      path.parent_path() / fmt::format("{}.tmp-{}", path.filename().string(), ::getpid());
  try {
    write_content(dataset, temporary);
    std::filesystem::rename(temporary, path);
  } catch (const std::filesystem::filesystem_error& error) {
    std::filesystem::remove(temporary);
    throw IoError("{}: {}", path.string(), error.code().message());
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
}

}  // namespace strata::data
