// Which weight is at fault when a loss is not finite. Owns: the search, a piece at a time. Never:
// what follows from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/shard/unit_store.h"

namespace strata::train {

struct BrokenWeight {
  std::string tensor;
  std::string value;           // "nan", "inf" or "-inf"
  std::vector<int64_t> place;  // empty: of codes, in which a value has no place of its own
  bool is_frozen = false;

  // `"model.norm.weight" at [3]`.
  std::string text() const;
};

// The first in the order of units that holds a value which is not finite, the same on every rank;
// nothing where all are. Each rank looks at its own shard, at codes as a whole. Collective. Memory:
// a small piece, of codes a whole unit and a decoded matrix.
std::optional<BrokenWeight> find_broken_weight(shard::UnitStore& store);

}  // namespace strata::train
