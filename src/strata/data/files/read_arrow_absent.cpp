// Stands for read_arrow.cpp in a build without Arrow (-DSTRATA_ARROW=OFF). Never: reads.
#include "strata/base/error.h"
#include "strata/data/files/row_collector.h"

namespace strata::data {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path) {
  throw ConfigError(
      "{}: found a file of a kind that this build does not read, expected json lines, csv or text; "
      "convert it, or build with -DSTRATA_ARROW=ON",
      path.string());
}

}  // namespace

void read_parquet_rows(const std::filesystem::path& path, RowCollector&) { refuse(path); }

void read_arrow_rows(const std::filesystem::path& path, RowCollector&) { refuse(path); }

}  // namespace strata::data
