// Split names with slices, as `datasets` takes them: "train", "train[:10%]", "train[100:-5]+test".
// Never reads files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace strata::data {

// One part of a specification.
struct SplitPart {
  std::string split;
  std::optional<int64_t> from, to;  // rows, or percent; negative: from the end
  bool is_percent = false;

  bool is_whole() const { return !from && !to; }
  // The rows [begin, end) of a split of `num_rows`. Percent are rounded to the nearest row (halves
  // to the even one), and bounds outside are cut, as datasets' ReadInstruction does.
  std::pair<int64_t, int64_t> range(int64_t num_rows) const;
};

// The parts, in order. Errors: ConfigError that quotes `specification`.
std::vector<SplitPart> parse_split(const std::string& specification);

// "train[:10%],test" at its commas, without spaces around the parts.
std::vector<std::string> split_list(const std::string& list);

}  // namespace strata::data
