// Which columns of JSON texts the datasets library hands on as text: Json(decode=False) in the
// metadata of parquet and Arrow files. Never reads rows.
#pragma once

#include <memory>
#include <string_view>

#include <arrow/type_fwd.h>

#include "strata/base/json.h"

namespace strata::data {

// The features that the schema's key "huggingface" describes, by column; none where it says none.
Json read_features(std::string_view metadata);

// The type of a column as its feature has it: JSON that is not to be decoded is text. The type
// itself where the feature is another's, or none (null).
std::shared_ptr<arrow::DataType> featured_type(const std::shared_ptr<arrow::DataType>& type,
                                               const Json& feature);

}  // namespace strata::data
