// Lists as flags and files write them. Owns: where one entry ends. Never: what entries mean.
#pragma once

#include <string>
#include <vector>

namespace strata::config {

// The entries of all items together. An item may hold several names with commas between; an
// expression keeps its commas. A single item may be a whole list as JSON or Python writes it.
std::vector<std::string> list_entries(const std::vector<std::string>& items);

}  // namespace strata::config
