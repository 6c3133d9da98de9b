// A row by itself; how rows are found and read is in files/source.cpp.
#include "strata/base/error.h"
#include "strata/data/files/source.h"

namespace strata::data {

std::string RowPlace::text() const {
  const std::string text = fmt::format("{}:{}", file ? *file : std::string("row"), line);
  return number == 0 ? text : fmt::format("{} (row {})", text, number);
}

std::string Row::where() const { return place().text(); }

const Json* Row::find(const std::string& column) const {
  const auto it = fields.find(column);
  return it == fields.end() || it->is_null() ? nullptr : &*it;
}

}  // namespace strata::data
