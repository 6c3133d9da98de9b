// What names a device.
#include "strata/config/device_ids.h"

#include <algorithm>
#include <set>

#include "strata/base/error.h"

namespace strata::config {

bool names_device(std::string_view id) {
  const bool is_number =
      !id.empty() && std::ranges::all_of(id, [](char c) { return c >= '0' && c <= '9'; });
  return is_number || id.starts_with("GPU-") || id.starts_with("MIG-");
}

int count_device_ids(std::string_view list, std::string_view subject) {
  std::set<std::string_view> seen;
  for (std::string_view rest = list; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view id = rest.substr(0, comma);
    if (!names_device(id)) {
      throw ConfigError(
          "{}: found \"{}\" in \"{}\", expected numbers of devices, such as "
          "0,1",
          subject, id, list);
    }
    if (!seen.insert(id).second) {
      throw ConfigError("{}: found {} twice in \"{}\", expected every device once", subject, id,
                        list);
    }
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return static_cast<int>(seen.size());
}

}  // namespace strata::config
