#include "strata/data/files/arrow_values.h"

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/scalar.h>
#include <arrow/type.h>

#include "strata/base/error.h"
#include "strata/base/exact_json.h"
#include "strata/base/float16.h"
#include "strata/text/utf8.h"

namespace strata::data {
namespace {

bool is_text(const arrow::DataType& type) {
  if (type.id() == arrow::Type::DICTIONARY) {
    return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
  }
  return type.id() == arrow::Type::STRING || type.id() == arrow::Type::LARGE_STRING ||
         type.id() == arrow::Type::STRING_VIEW;
}

template <typename ArrayType>
Json text_at(const arrow::Array& array, int64_t row) {
  const std::string_view text = static_cast<const ArrayType&>(array).GetView(row);
  if (!text::is_valid_utf8(text))
    throw FormatError("found bytes that are not UTF-8, expected UTF-8 text");
  return std::string(text);
}

template <typename ArrayType>
Json number_at(const arrow::Array& array, int64_t row) {
  return static_cast<const ArrayType&>(array).Value(row);
}

// The values [begin, end) of a list's items.
Json items_of(const arrow::Array& values, int64_t begin, int64_t end) {
  Json list = Json::array();
  for (int64_t i = begin; i < end; ++i) list.push_back(value_at(values, i));
  return list;
}

template <typename ListType>
Json list_at(const arrow::Array& array, int64_t row) {
  const auto& list = static_cast<const ListType&>(array);
  return items_of(*list.values(), list.value_offset(row), list.value_offset(row + 1));
}

template <typename ListType>
Json list_view_at(const arrow::Array& array, int64_t row) {
  const auto& list = static_cast<const ListType&>(array);
  const int64_t begin = list.value_offset(row);
  return items_of(*list.values(), begin, begin + list.value_length(row));
}

Json fixed_list_at(const arrow::Array& array, int64_t row) {
  const auto& list = static_cast<const arrow::FixedSizeListArray&>(array);
  const int64_t begin = list.value_offset(row);
  return items_of(*list.values(), begin, begin + list.value_length());
}

Json struct_at(const arrow::Array& array, int64_t row) {
  const auto& fields = static_cast<const arrow::StructArray&>(array);
  Json object = Json::object();
  for (int i = 0; i < fields.num_fields(); ++i) {
    object[fields.type()->field(i)->name()] = value_at(*fields.field(i), row);
  }
  return object;
}

Json dictionary_at(const arrow::Array& array, int64_t row) {
  const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
  return value_at(*coded.dictionary(), coded.GetValueIndex(row));
}

// Of a key that stands there twice the last value, as in a dict of the pairs.
Json map_at(const arrow::Array& array, int64_t row) {
  const auto& map = static_cast<const arrow::MapArray&>(array);
  Json object = Json::object();
  for (int64_t i = map.value_offset(row); i < map.value_offset(row + 1); ++i) {
    object[value_at(*map.keys(), i).get<std::string>()] = value_at(*map.items(), i);
  }
  return object;
}

Json half_at(const arrow::Array& array, int64_t row) {
  return fp16_to_float(static_cast<const arrow::HalfFloatArray&>(array).Value(row));
}

// What JSON text means, as the readers of JSON files have it.
Json json_at(const arrow::Array& storage, int64_t row) {
  const Json text = value_at(storage, row);
  try {
    return parse_json_exactly(text.get_ref<const std::string&>(), "json");
  } catch (const FormatError& error) {
    throw FormatError(
        "found a value of a JSON column that is no JSON ({}), expected JSON text; write the file "
        "again, or its column as text",
        error.what());
  }
}

// An extension's value is that of the type it is stored as, except for JSON.
Json extension_at(const arrow::Array& array, int64_t row) {
  const auto& storage = *static_cast<const arrow::ExtensionArray&>(array).storage();
  return is_json(*array.type()) ? json_at(storage, row) : value_at(storage, row);
}

// Dates, times and decimals as text: "2024-02-29 12:30:00".
Json written_at(const arrow::Array& array, int64_t row) {
  const auto scalar = array.GetScalar(row);
  if (!scalar.ok())
    throw FormatError("found {}, expected a date, a time or a number",
                      first_line(scalar.status().message()));
  return scalar.ValueUnsafe()->ToString();
}

using Converter = Json (*)(const arrow::Array&, int64_t);

// Null for a type that has no place in a row.
Converter converter_of(arrow::Type::type type) {
  switch (type) {
    case arrow::Type::NA:
      return [](const arrow::Array&, int64_t) { return Json(nullptr); };
    case arrow::Type::STRING:
      return text_at<arrow::StringArray>;
    case arrow::Type::LARGE_STRING:
      return text_at<arrow::LargeStringArray>;
    case arrow::Type::STRING_VIEW:
      return text_at<arrow::StringViewArray>;
    case arrow::Type::BOOL:
      return number_at<arrow::BooleanArray>;
    case arrow::Type::INT8:
      return number_at<arrow::Int8Array>;
    case arrow::Type::INT16:
      return number_at<arrow::Int16Array>;
    case arrow::Type::INT32:
      return number_at<arrow::Int32Array>;
    case arrow::Type::INT64:
      return number_at<arrow::Int64Array>;
    case arrow::Type::UINT8:
      return number_at<arrow::UInt8Array>;
    case arrow::Type::UINT16:
      return number_at<arrow::UInt16Array>;
    case arrow::Type::UINT32:
      return number_at<arrow::UInt32Array>;
    case arrow::Type::UINT64:
      return number_at<arrow::UInt64Array>;
    case arrow::Type::HALF_FLOAT:
      return half_at;
    case arrow::Type::FLOAT:
      return number_at<arrow::FloatArray>;
    case arrow::Type::DOUBLE:
      return number_at<arrow::DoubleArray>;
    case arrow::Type::LIST:
      return list_at<arrow::ListArray>;
    case arrow::Type::LARGE_LIST:
      return list_at<arrow::LargeListArray>;
    case arrow::Type::LIST_VIEW:
      return list_view_at<arrow::ListViewArray>;
    case arrow::Type::LARGE_LIST_VIEW:
      return list_view_at<arrow::LargeListViewArray>;
    case arrow::Type::FIXED_SIZE_LIST:
      return fixed_list_at;
    case arrow::Type::MAP:
      return map_at;
    case arrow::Type::STRUCT:
      return struct_at;
    case arrow::Type::DICTIONARY:
      return dictionary_at;
    case arrow::Type::EXTENSION:
      return extension_at;
    case arrow::Type::DATE32:
    case arrow::Type::DATE64:
    case arrow::Type::TIMESTAMP:
    case arrow::Type::TIME32:
    case arrow::Type::TIME64:
    case arrow::Type::DECIMAL32:
    case arrow::Type::DECIMAL64:
    case arrow::Type::DECIMAL128:
    case arrow::Type::DECIMAL256:
      return written_at;
    default:
      return nullptr;
  }
}

// A readable type as it lies in memory: bytes for texts, integers for times.
std::shared_ptr<arrow::DataType> stored_type(const std::shared_ptr<arrow::DataType>& type) {
  const auto stored = [](const std::shared_ptr<arrow::Field>& field) {
    return field->WithType(stored_type(field->type()));
  };
  switch (type->id()) {
    case arrow::Type::STRING:
      return arrow::binary();
    case arrow::Type::LARGE_STRING:
      return arrow::large_binary();
    case arrow::Type::STRING_VIEW:
      return arrow::binary_view();
    case arrow::Type::TIME32:
      return arrow::int32();
    case arrow::Type::TIME64:
    case arrow::Type::DATE64:
      return arrow::int64();
    case arrow::Type::MAP: {
      const auto& map = static_cast<const arrow::MapType&>(*type);
      return std::make_shared<arrow::MapType>(stored(map.key_field()), stored(map.item_field()),
                                              map.keys_sorted());
    }
    case arrow::Type::EXTENSION:
      return stored_type(static_cast<const arrow::ExtensionType&>(*type).storage_type());
    case arrow::Type::LIST_VIEW:
      return arrow::list_view(stored(type->field(0)));
    case arrow::Type::LARGE_LIST_VIEW:
      return arrow::large_list_view(stored(type->field(0)));
    case arrow::Type::LIST:
      return arrow::list(stored(type->field(0)));
    case arrow::Type::LARGE_LIST:
      return arrow::large_list(stored(type->field(0)));
    case arrow::Type::FIXED_SIZE_LIST:
      return arrow::fixed_size_list(
          stored(type->field(0)), static_cast<const arrow::FixedSizeListType&>(*type).list_size());
    case arrow::Type::STRUCT: {
      arrow::FieldVector fields;
      for (const auto& field : type->fields()) fields.push_back(stored(field));
      return arrow::struct_(std::move(fields));
    }
    case arrow::Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryType&>(*type);
      return arrow::dictionary(coded.index_type(), stored_type(coded.value_type()),
                               coded.ordered());
    }
    default:
      return type;
  }
}

// The same buffers, read as such a type.
std::shared_ptr<arrow::ArrayData> as_stored(const arrow::ArrayData& data,
                                            const std::shared_ptr<arrow::DataType>& type) {
  auto copy = std::make_shared<arrow::ArrayData>(data);
  copy->type = type;
  for (size_t i = 0; i < copy->child_data.size(); ++i) {
    copy->child_data[i] = as_stored(*data.child_data[i], type->field(static_cast<int>(i))->type());
  }
  if (data.dictionary) {
    copy->dictionary =
        as_stored(*data.dictionary, static_cast<const arrow::DictionaryType&>(*type).value_type());
  }
  return copy;
}

}  // namespace

bool is_json(const arrow::DataType& type) {
  if (type.id() != arrow::Type::EXTENSION) return false;
  const auto& extension = static_cast<const arrow::ExtensionType&>(type);
  return extension.extension_name() == "arrow.json" && is_text(*extension.storage_type());
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

bool is_readable(const arrow::DataType& type) {
  if (type.id() == arrow::Type::DICTIONARY) {
    return is_readable(*static_cast<const arrow::DictionaryType&>(type).value_type());
  }
  if (type.id() == arrow::Type::EXTENSION) {
    return is_readable(*static_cast<const arrow::ExtensionType&>(type).storage_type());
  }
  if (type.id() == arrow::Type::MAP &&
      !is_text(*static_cast<const arrow::MapType&>(type).key_type())) {
    return false;
  }
  for (const auto& field : type.fields()) {
    if (!is_readable(*field->type())) return false;
  }
  return converter_of(type.id()) != nullptr;
}

Json value_at(const arrow::Array& array, int64_t row) {
  if (array.IsNull(row)) return nullptr;
  return converter_of(array.type_id())(array, row);
}

std::shared_ptr<arrow::Array> with_type(const arrow::Array& array,
                                        const std::shared_ptr<arrow::DataType>& type) {
  return arrow::MakeArray(as_stored(*array.data(), type));
}

arrow::Status validate_storage(const arrow::Array& array) {
  return with_type(array, stored_type(array.type()))->ValidateFull();
}

}  // namespace strata::data
