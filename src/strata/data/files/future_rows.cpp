#include "strata/data/files/future_rows.h"

#include <vector>

#include "strata/data/files/split_files.h"
#include "strata/data/files/split_spec.h"

namespace strata::data {

std::string set_that_would_read(const std::string& names, const std::string& splits,
                                const std::string& configuration,
                                const std::filesystem::path& file) {
  // A path or a pattern may hold a comma.
  const bool is_one = std::filesystem::exists(names) || has_matches(names);
  for (const std::string& name : is_one ? std::vector{names} : split_list(names)) {
    for (const std::string& split : split_list(splits)) {
      for (const SplitPart& part : parse_split(split)) {
        if (would_read(name, part.split, configuration, file)) return name;
      }
    }
  }
  return "";
}

}  // namespace strata::data
