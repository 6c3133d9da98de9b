// Names of classes that the datasets library writes into the metadata of parquet and Arrow files,
// for columns of its type ClassLabel and lists of such. Never reads rows.
#pragma once

#include <string_view>

#include "strata/data/files/source.h"

namespace strata::data {

// `metadata`: the value of the schema's key "huggingface". What it does not say, or says in another
// form, is left out: the columns are then numbers as they stand.
ClassNames read_class_names(std::string_view metadata);

}  // namespace strata::data
