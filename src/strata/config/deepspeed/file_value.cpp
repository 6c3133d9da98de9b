#include "strata/config/deepspeed/file_value.h"

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/config/normal_text.h"

namespace strata::config {

void take_value(const DsEntry& entry, const std::string& name, const std::string& text,
                Merge& merge) {
  if (!find_setting(name)) {
    throw ConfigError("{}: found {}; it is not supported in this version", entry.source(),
                      ds_text(entry.value));
  }
  const Given given = make_given(name, text, {Rank::kFile, entry.source()});
  const Given* known = merge.find(name);
  if (known && known->origin.rank >= Rank::kEnvironment &&
      normal_text(*known->setting, canonical_text(*known)) !=
          normal_text(*given.setting, canonical_text(given))) {
    const std::string other = canonical_text(*known), &source = known->origin.source;
    const bool is_named = source.find(name) != std::string::npos;
    const bool may_be_auto = entry.key != nullptr && !entry.key->automatic.empty();
    throw ConfigError(
        "{}: found {} with {}, expected the same; correct one{}", entry.source(),
        ds_text(entry.value),
        is_named ? source + " " + other : fmt::format("{} {} ({})", name, other, source),
        may_be_auto ? ", or write \"auto\" in the file" : "");
  }
  merge.add(given);
}

}  // namespace strata::config
