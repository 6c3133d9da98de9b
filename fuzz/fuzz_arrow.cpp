// Arrow IPC, as a stream or as a file, and parquet: rows whose values are texts, or a named error.
// Arrow's own memory must come from malloc, so that the sanitizers see its ends
// (ARROW_DEFAULT_MEMORY_POOL=system).
#include "strata/data/files/row_collector.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const strata::data::TakeRows check = [](strata::data::RowBatch batch) {
    for (const auto& row : batch.rows) {
      if (!row.fields.is_object() || row.line < 1) __builtin_trap();
      static_cast<void>(row.fields.dump());  // throws where a text is not UTF-8
    }
    return true;
  };
  const bool is_parquet = strata::fuzz::text_of(data, size).starts_with("PAR1");
  for (const bool skips_bad_rows : {false, true}) {
    strata::data::RowCollector rows(check, skips_bad_rows);
    strata::fuzz::expect_answer([&] {
      const strata::fuzz::MemoryFile input(data, size);
      rows.begin_file(input.path(), {0, 1});
      is_parquet ? strata::data::read_parquet_rows(input.path(), rows)
                 : strata::data::read_arrow_rows(input.path(), rows);
    });
    rows.flush();
  }
  return 0;
}
