#include "strata/data/files/row_collector.h"

#include "strata/base/error.h"

namespace strata::data {
namespace {

const char* describe(const Json& value) {
  if (value.is_array()) return "an array";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a boolean";
  return value.is_null() ? "null" : "a number";
}

// About as many bytes as the value has as text.
size_t text_size(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().size();
  size_t size = sizeof(Json);
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) size += key.size() + text_size(item);
  } else if (value.is_array()) {
    for (const Json& item : value) size += text_size(item);
  }
  return size;
}

}  // namespace

void RowCollector::begin_file(const std::filesystem::path& path, std::pair<double, double> part) {
  file_ = std::make_shared<const std::string>(path.string());
  file_part_ = part;
  name_classes({});
  mapped_.reset();
  position_ = forgotten_ = 0;
  batch_.part = part.first;
}

std::span<const std::byte> RowCollector::map(const std::filesystem::path& path) {
  return mapped_.emplace(path).data();
}

bool RowCollector::passes_over(int64_t rows) {
  if (skips_ || num_rows_ + rows > first_) return false;
  num_rows_ += rows;
  return true;
}

void RowCollector::add(Json fields, int64_t line, int64_t number) {
  if (!fields.is_object()) {
    const RowPlace place{.file = file_, .line = line, .number = number};
    return refuse(
        fmt::format("{}: found {}, expected a JSON object; give each row as "
                    "{{\"column\": value, ...}}",
                    place.text(), describe(fields)));
  }
  if (!wants_more_) return;
  if (++num_rows_ <= first_) return;
  batch_bytes_ += text_size(fields);
  batch_.rows.push_back({.fields = std::move(fields),
                         .file = file_,
                         .line = line,
                         .number = number,
                         .class_names = class_names_});
  if (batch_.rows.size() >= kBatchRows || batch_bytes_ >= kBatchBytes) flush();
}

void RowCollector::describe_columns(ClassNames card) { card_ = std::move(card); }

void RowCollector::name_classes(ClassNames names) {
  for (const auto& [column, classes] : card_) names[column] = classes;
  std::erase_if(names, [](const auto& column) { return column.second.empty(); });
  if (names.empty()) return class_names_.reset();
  class_names_ = std::make_shared<const ClassNames>(std::move(names));
}

void RowCollector::refuse(const std::string& message) {
  if (!skips_) throw FormatError(message);
  if (bad_rows_.count++ == 0) bad_rows_.first = message;
}

void RowCollector::move_to(size_t at, size_t size) {
  position_ = at;
  const double part = size == 0 ? 1.0 : static_cast<double>(at) / static_cast<double>(size);
  batch_.part = file_part_.first + part * (file_part_.second - file_part_.first);
  if (position_ - forgotten_ >= kForgetBytes) forget();  // rows that are passed over fill no batch
}

void RowCollector::forget() {
  if (!mapped_ || position_ <= forgotten_ || position_ > mapped_->data().size()) return;
  forget_pages(mapped_->data().subspan(forgotten_, position_ - forgotten_));
  forgotten_ = position_;
}

void RowCollector::flush() {
  forget();
  if (batch_.rows.empty() || !wants_more_) return;
  RowBatch batch{.rows = std::move(batch_.rows), .part = batch_.part};
  batch_.rows.clear();
  batch_bytes_ = 0;
  wants_more_ = take_(std::move(batch));
}

}  // namespace strata::data
