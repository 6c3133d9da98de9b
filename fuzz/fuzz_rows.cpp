// Rows of JSON lines, JSON arrays, CSV and text, and what they are as examples and as preferences.
// The first byte chooses the format and whether bad rows are left out.
#include "strata/data/files/row_collector.h"
#include "strata/data/rows/conversation_row.h"
#include "strata/data/rows/preference_row.h"
#include "target.h"

namespace {

using namespace strata::data;

void read_example(const Row& row) {
  const RowFormat format = detect_format(row, "text");
  (void)template_variables(row);
  if (format.is_conversational()) (void)read_whole_conversation(row);
  std::map<std::string, int64_t> unused;
  count_unused_columns(row, format, "text", unused);
}

void read_as_preference(const Row& row) {
  const RowFormat format = detect_preference(row, "text");
  std::map<std::string, int64_t> counted;
  count_unused_columns(row, format, "text", counted);
  const Preference preference = read_preference(row, format);
  for (const strata::Json& part : {preference.prompt, preference.chosen, preference.rejected}) {
    if (format.is_conversational() ? !part.is_array() : !part.is_string()) __builtin_trap();
    if (!part.is_string()) continue;
    // Cut between characters: what is written is UTF-8.
    (void)part.dump();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text = strata::fuzz::text_of(data + 1, size - 1);
  const strata::data::TakeRows check = [](strata::data::RowBatch batch) {
    for (const auto& row : batch.rows) {
      if (!row.fields.is_object() || row.line < 1) __builtin_trap();
      strata::fuzz::expect_answer([&] { read_example(row); });
      strata::fuzz::expect_answer([&] { read_as_preference(row); });
      // Columns are counted before anybody looks whether the row is like the first.
      std::map<std::string, int64_t> unused;
      count_unused_columns(row, {.kind = RowKind::kPreferenceMessages}, "text", unused);
    }
    return true;
  };
  strata::data::RowCollector rows(check, /*skips_bad_rows=*/(data[0] & 8) != 0);
  rows.begin_file("rows", {0, 1});
  strata::fuzz::expect_answer([&] {
    switch (data[0] % 4) {
      case 0:
      case 1:
        return strata::data::read_json_rows(text, rows);
      case 2:
        return strata::data::read_csv_rows(text, ',', rows);
      default:
        return strata::data::read_text_rows(text, rows);
    }
  });
  rows.flush();
  return 0;
}
