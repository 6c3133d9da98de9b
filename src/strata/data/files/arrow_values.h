// Values of Arrow columns as JSON. Never opens files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <arrow/status.h>
#include <arrow/type_fwd.h>

#include "strata/base/json.h"

namespace strata::data {

// Arrow's messages may have several lines.
std::string first_line(const std::string& text);

// Whether values of the type have a place in a row: texts, numbers, booleans, lists and views of
// lists, structs, maps with texts as keys, and dates, times and decimals, which become text as
// Arrow writes them, and JSON texts, which become what they say. Not: bytes, durations, intervals,
// unions.
bool is_readable(const arrow::DataType& type);

// Whether values of the type are texts of JSON ("arrow.json", the type Json of `datasets`).
bool is_json(const arrow::DataType& type);

// The value in a row of the array; null where there is none. Requires: is_readable, and that
// validate_storage found the array sound. Errors: FormatError "found ..., expected ..." for a text
// that is not UTF-8, and for JSON that is none.
Json value_at(const arrow::Array& array, int64_t row);

// The same values under a type whose buffers are the same. Requires: such a type.
std::shared_ptr<arrow::Array> with_type(const arrow::Array& array,
                                        const std::shared_ptr<arrow::DataType>& type);

// Arrow's own look at a whole array, but for what single values mean: that no offset or index leads
// out of its buffers.
arrow::Status validate_storage(const arrow::Array& array);

}  // namespace strata::data
