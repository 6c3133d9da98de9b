#include "strata/shard/segments.h"

namespace strata::shard {
namespace {

std::vector<OwnPiece> pieces_in(UnitStore& store, const std::vector<SegmentPlace>& places) {
  const int rank = store.mesh().shard->rank();
  std::vector<OwnPiece> pieces;
  for (const SegmentPlace& place : places) {
    for (const Piece& piece : pieces_of(*place.layout, rank)) {
      pieces.push_back({place.unit, place.segment, piece});
    }
  }
  return pieces;
}

}  // namespace

std::vector<SegmentPlace> segments_of(UnitStore& store) {
  std::vector<SegmentPlace> places;
  for (int u = 0; u < store.num_units(); ++u) {
    const std::vector<Segment>& segments = store.unit(u).segments;
    for (size_t s = 0; s < segments.size(); ++s) {
      places.push_back({u, static_cast<int>(s), &segments[s]});
    }
  }
  return places;
}

std::vector<SegmentPlace> trained_segments_of(UnitStore& store) {
  std::vector<SegmentPlace> places = segments_of(store);
  std::erase_if(places, [](const SegmentPlace& place) { return !place.layout->trainable; });
  return places;
}

std::vector<OwnPiece> own_pieces(UnitStore& store) { return pieces_in(store, segments_of(store)); }

std::vector<OwnPiece> own_trained_pieces(UnitStore& store) {
  return pieces_in(store, trained_segments_of(store));
}

at::Tensor value_of(UnitStore& store, const OwnPiece& own) {
  return store.home(own.unit, own.segment).value.narrow(0, own.piece.shard_begin, own.piece.length);
}

}  // namespace strata::shard
