#include "strata/data/files/json_columns.h"

#include <arrow/extension_type.h>
#include <arrow/type.h>

#include "strata/base/error.h"
#include "strata/data/files/arrow_values.h"

namespace strata::data {
namespace {

const Json& member(const Json& object, const std::string& key) {
  static const Json kNone;
  if (!object.is_object()) return kNone;
  const auto found = object.find(key);
  return found == object.end() ? kNone : *found;
}

std::shared_ptr<arrow::Field> featured_field(const std::shared_ptr<arrow::Field>& field,
                                             const Json& feature) {
  return field->WithType(featured_type(field->type(), feature));
}

}  // namespace

Json read_features(std::string_view metadata) try {
  return member(member(parse_json(metadata, "huggingface"), "info"), "features");
} catch (const FormatError&) {
  return {};
}

std::shared_ptr<arrow::DataType> featured_type(const std::shared_ptr<arrow::DataType>& type,
                                               const Json& feature) {
  switch (type->id()) {
    case arrow::Type::EXTENSION:
      if (!is_json(*type) || member(feature, "decode") != false) return type;
      return static_cast<const arrow::ExtensionType&>(*type).storage_type();
    case arrow::Type::LIST:
      return arrow::list(featured_field(type->field(0), member(feature, "feature")));
    case arrow::Type::LARGE_LIST:
      return arrow::large_list(featured_field(type->field(0), member(feature, "feature")));
    case arrow::Type::FIXED_SIZE_LIST:
      return arrow::fixed_size_list(
          featured_field(type->field(0), member(feature, "feature")),
          static_cast<const arrow::FixedSizeListType&>(*type).list_size());
    case arrow::Type::STRUCT: {
      arrow::FieldVector fields;
      for (const auto& field : type->fields()) {
        fields.push_back(featured_field(field, member(feature, field->name())));
      }
      return arrow::struct_(std::move(fields));
    }
    default:
      return type;
  }
}

}  // namespace strata::data
