// A setting's field by its type. Owns: the one way from a record's accessor to the field it names.
// Never: text.
#pragma once

#include <optional>
#include <type_traits>
#include <variant>

#include "strata/base/error.h"
#include "strata/config/settings/table.h"

namespace strata::config {

template <typename T>
struct OptionalTraits {
  using Value = T;
  static constexpr bool kIsOptional = false;
};
template <typename T>
struct OptionalTraits<std::optional<T>> {
  using Value = T;
  static constexpr bool kIsOptional = true;
};

// What `visitor` returns for the field: it is given the ChoiceField of one of a closed set, of
// others a reference to the member. Requires: the setting is bound.
template <typename Visitor>
auto visit_field(const Setting& setting, RunConfig& config, const Visitor& visitor) {
  using Result = std::invoke_result_t<const Visitor&, bool&>;
  return std::visit(
      [&](const auto& accessor) -> Result {
        using Accessor = std::decay_t<decltype(accessor)>;
        if constexpr (std::is_same_v<Accessor, std::monostate>) {
          throw InternalError("setting {}: found no field, expected one", setting.name);
        } else if constexpr (std::is_same_v<Accessor, ChoiceField>) {
          return visitor(accessor);
        } else {
          return visitor(accessor(config));
        }
      },
      setting.field);
}

// The same for who only reads.
template <typename Visitor>
auto visit_field(const Setting& setting, const RunConfig& config, const Visitor& visitor) {
  return visit_field(setting, const_cast<RunConfig&>(config),
                     [&](const auto& field) { return visitor(field); });
}

}  // namespace strata::config
