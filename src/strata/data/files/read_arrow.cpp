// Rows of parquet files and of Arrow IPC files, through Arrow's own readers.
#include <algorithm>
#include <set>
#include <string_view>

#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <arrow/util/key_value_metadata.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/data/files/arrow_values.h"
#include "strata/data/files/class_names.h"
#include "strata/data/files/json_columns.h"
#include "strata/data/files/row_collector.h"
#include "strata/text/utf8.h"

namespace strata::data {
namespace {

void require(const arrow::Status& status, const std::string& file) {
  if (status.ok()) return;
  std::string found = first_line(status.message());
  while (found.ends_with('.')) found.pop_back();
  throw FormatError("{}: found {}, expected a readable file; it may be cut off", file, found);
}

template <typename T>
T take(arrow::Result<T> result, const std::string& file) {
  require(result.status(), file);
  return std::move(result).ValueUnsafe();
}

// Columns that hold what a row cannot (the bytes of images) are left out: no recipe reads them.
std::string left_out_name(const arrow::Field& field) {
  const std::string type = field.type()->ToString();
  size_t end = type.size() > 40 ? 37 : type.size();
  while (end < type.size() && text::is_continuation(type[end])) --end;
  return fmt::format("{} ({}{})", field.name(), std::string_view(type).substr(0, end),
                     end < type.size() ? "..." : "");
}

std::vector<int> readable_columns(const arrow::Schema& schema) {
  std::vector<int> columns;
  for (int i = 0; i < schema.num_fields(); ++i) {
    if (is_readable(*schema.field(i)->type())) columns.push_back(i);
  }
  return columns;
}

// A name that is not UTF-8 could not even be shown.
void require_names(const arrow::FieldVector& fields, const std::string& file) {
  for (const auto& field : fields) {
    if (!text::is_valid_utf8(field->name())) {
      throw FormatError("{}: found a column name that is not UTF-8, expected a readable file",
                        file);
    }
    require_names(field->type()->fields(), file);
  }
}

// If two columns have one name, a row would have to leave one out.
void require_distinct(const arrow::Schema& schema, const std::vector<int>& columns,
                      const std::string& file) {
  std::set<std::string_view> seen;
  for (const int i : columns) {
    if (seen.insert(schema.field(i)->name()).second) continue;
    throw FormatError("{}: found the column \"{}\" twice, expected every name once", file,
                      schema.field(i)->name());
  }
}

// That no offset or index of a damaged file leads out of its buffers: Arrow's own look at a whole
// column, except for what single values mean. A bad text is its row's fault, not the file's.
void require_sound(const arrow::Array& column, const std::string& name, const std::string& file) {
  const arrow::Status status = validate_storage(column);
  if (status.ok()) return;
  throw FormatError("{}: found {} in column \"{}\", expected a readable file; it is damaged", file,
                    first_line(status.message()), name);
}

class BatchReader {
 public:
  // `metadata`: the schema's, may be null.
  BatchReader(RowCollector& rows, const std::shared_ptr<const arrow::KeyValueMetadata>& metadata)
      : rows_(rows) {
    const int at = metadata ? metadata->FindKey("huggingface") : -1;
    const std::string described = at < 0 ? "" : metadata->value(at);
    rows.name_classes(read_class_names(described));
    features_ = read_features(described);
  }

  // Whether the next `rows` of the file are left unread.
  bool passes_over(int64_t rows) {
    if (!rows_.passes_over(rows)) return false;
    line_ += rows;
    return true;
  }

  void read(const arrow::RecordBatch& batch) {
    require(batch.Validate(), rows_.file());
    require_names(batch.schema()->fields(), rows_.file());
    const std::vector<int> columns = readable_columns(*batch.schema());
    require_distinct(*batch.schema(), columns, rows_.file());
    if (columns.empty() && batch.num_columns() > 0) {
      throw FormatError(
          "{}: found only columns that no row can hold ({}), expected texts, numbers, lists or "
          "objects; write texts as strings, not as bytes",
          rows_.file(), left_out_name(*batch.schema()->field(0)));
    }
    std::vector<std::shared_ptr<arrow::Array>> values;
    for (const int i : columns) {
      const std::string& name = batch.schema()->field(i)->name();
      require_sound(*batch.column(i), name, rows_.file());
      values.push_back(as_featured(*batch.column(i), name));
    }
    for (int i = 0; i < batch.num_columns(); ++i) {
      if (std::ranges::find(columns, i) != columns.end()) continue;
      rows_.leave_out(left_out_name(*batch.schema()->field(i)), batch.num_rows());
    }
    for (int64_t row = 0; row < batch.num_rows() && rows_.wants_more(); ++row) {
      ++line_;
      if (rows_.passes_over()) continue;
      try {
        Json fields = Json::object();
        for (size_t i = 0; i < columns.size(); ++i) {
          fields[batch.schema()->field(columns[i])->name()] = value_at(*values[i], row);
        }
        rows_.add(std::move(fields), line_);
      } catch (const FormatError& error) {
        rows_.refuse(fmt::format("{}:{}: {}", rows_.file(), line_, error.what()));
      }
    }
  }

  // `position`: where the file has been read to.
  template <typename Position>
  void read_all(arrow::RecordBatchReader& reader, size_t size, Position&& position) {
    std::shared_ptr<arrow::RecordBatch> batch;
    while (rows_.wants_more()) {
      require(reader.ReadNext(&batch), rows_.file());
      if (!batch) return;
      rows_.move_to(position(), size);
      if (!passes_over(batch->num_rows())) read(*batch);
    }
  }

 private:
  std::shared_ptr<arrow::Array> as_featured(const arrow::Array& column,
                                            const std::string& name) const {
    const auto feature = features_.find(name);
    return with_type(column,
                     featured_type(column.type(), feature == features_.end() ? Json() : *feature));
  }

  RowCollector& rows_;
  Json features_;
  int64_t line_ = 0;
};

// The file's bytes, which must outlive what is made of it.
std::shared_ptr<arrow::io::BufferReader> open_mapped(std::span<const std::byte> bytes) {
  return std::make_shared<arrow::io::BufferReader>(std::make_shared<arrow::Buffer>(
      reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int64_t>(bytes.size())));
}

// Where the bytes of a row group end.
size_t end_of(const parquet::RowGroupMetaData& group, size_t file_size) {
  int64_t end = 0;
  for (int i = 0; i < group.num_columns(); ++i) {
    const auto column = group.ColumnChunk(i);
    const int64_t begin = column->has_dictionary_page() ? std::min(column->dictionary_page_offset(),
                                                                   column->data_page_offset())
                                                        : column->data_page_offset();
    end = std::max(end, begin + column->total_compressed_size());
  }
  return std::clamp<size_t>(static_cast<size_t>(std::max<int64_t>(end, 0)), 0, file_size);
}

// Batches are decoded as they are asked for: memory holds no row group as a whole.
parquet::ArrowReaderProperties reader_properties() {
  parquet::ArrowReaderProperties properties;
  properties.set_pre_buffer(false);
  properties.set_arrow_extensions_enabled(true);  // JSON of writers that know nothing of Arrow
  return properties;
}

// Of a batch: few where they are long.
int64_t batch_rows(const parquet::RowGroupMetaData& group) {
  constexpr int64_t kBatchBytes = int64_t{1} << 22;
  const int64_t row_bytes = group.total_byte_size() / std::max<int64_t>(group.num_rows(), 1);
  return std::clamp<int64_t>(kBatchBytes / std::max<int64_t>(row_bytes, 1), 1, 1024);
}

// Pages that carry checksums are held against them, which Arrow does only when asked.
parquet::ReaderProperties page_properties() {
  parquet::ReaderProperties properties;
  properties.set_page_checksum_verification(true);
  return properties;
}

}  // namespace

void read_parquet_rows(const std::filesystem::path& path, RowCollector& rows) {
  const std::span<const std::byte> bytes = rows.map(path);
  const size_t size = bytes.size();
  const std::string& name = rows.file();
  try {
    parquet::arrow::FileReaderBuilder builder;
    require(builder.Open(open_mapped(bytes), page_properties()), name);
    const auto reader = take(builder.properties(reader_properties())->Build(), name);
    const auto metadata = reader->parquet_reader()->metadata();
    BatchReader batches(rows, metadata->key_value_metadata());
    size_t position = 0;
    for (int i = 0; i < reader->num_row_groups() && rows.wants_more(); ++i) {
      if (!batches.passes_over(metadata->RowGroup(i)->num_rows())) {
        reader->set_batch_size(batch_rows(*metadata->RowGroup(i)));
        const auto group = take(reader->GetRecordBatchReader({i}), name);
        batches.read_all(*group, size, [&] { return position; });
      }
      position = end_of(*metadata->RowGroup(i), size);
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // parquet's own
    throw FormatError("{}: found {}, expected a readable parquet file", name,
                      first_line(error.what()));
  }
}

namespace {

void read_arrow_batches(std::span<const std::byte> bytes, RowCollector& rows) {
  const size_t size = bytes.size();
  const std::string& name = rows.file();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), size);
  const auto source = open_mapped(bytes);
  if (!text.starts_with("ARROW1")) {
    const auto reader = take(arrow::ipc::RecordBatchStreamReader::Open(source), name);
    BatchReader batches(rows, reader->schema()->metadata());
    batches.read_all(*reader, size,
                     [&] { return static_cast<size_t>(take(source->Tell(), name)); });
  } else {
    const auto reader = take(arrow::ipc::RecordBatchFileReader::Open(source), name);
    BatchReader batches(rows, reader->schema()->metadata());
    const auto count = static_cast<size_t>(reader->num_record_batches());
    for (size_t i = 0; i < count && rows.wants_more(); ++i) {
      rows.move_to(size / count * i, size);  // batches are of about one size
      const auto batch = take(reader->ReadRecordBatch(static_cast<int>(i)), name);
      if (!batches.passes_over(batch->num_rows())) batches.read(*batch);
    }
  }
}

}  // namespace

void read_arrow_rows(const std::filesystem::path& path, RowCollector& rows) {
  try {
    read_arrow_batches(rows.map(path), rows);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // a size that is no size
    throw FormatError("{}: found {}, expected a readable Arrow file; it is damaged", rows.file(),
                      first_line(error.what()));
  }
}

}  // namespace strata::data
