// Rows of JSON lines, JSON arrays, CSV and text. The first byte chooses the format and whether bad
// rows are left out.
#include "strata/data/row_collector.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text = strata::fuzz::text_of(data + 1, size - 1);
  const strata::data::TakeRows check = [](strata::data::RowBatch batch) {
    for (const auto& row : batch.rows) {
      if (!row.fields.is_object() || row.line < 1) __builtin_trap();
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
