// The segments of all units of a store one after the other, and what of them rests on this rank.
// For code that processes all of them; what is done with a single one is elsewhere.
#pragma once

#include <vector>

#include "strata/shard/unit_store.h"

namespace strata::shard {

struct SegmentPlace {
  int unit, segment;      // as UnitStore::home() takes them
  const Segment* layout;  // the store's
};

// A piece of this rank's shard.
struct OwnPiece {
  int unit, segment;
  Piece piece;
};

// All segments in the order of units, and of segments in a unit: the same on every rank.
std::vector<SegmentPlace> segments_of(UnitStore& store);
std::vector<SegmentPlace> trained_segments_of(UnitStore& store);

// This rank's pieces in the same order, and in that of tensors in a segment.
std::vector<OwnPiece> own_pieces(UnitStore& store);
std::vector<OwnPiece> own_trained_pieces(UnitStore& store);

// [length], a view of the home's value.
at::Tensor value_of(UnitStore& store, const OwnPiece& own);

}  // namespace strata::shard
