#include "strata/shard/unit.h"

#include <unordered_map>

namespace strata::shard {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Segment& segment_for(Unit& unit, const nn::Parameter& parameter) {
  for (Segment& segment : unit.segments) {
    if (segment.trainable == parameter.requires_grad() &&
        segment.storage == parameter.storage_type()) {
      return segment;
    }
  }
  unit.segments.push_back({parameter.requires_grad(), parameter.storage_type(), {}, 0, 0});
  return unit.segments.back();
}

void close_segments(Unit& unit, int shard_group_size) {
  std::stable_sort(unit.segments.begin(), unit.segments.end(),
                   [](const Segment& a, const Segment& b) { return a.trainable < b.trainable; });
  for (Segment& segment : unit.segments) {
    segment.shard_numel =
        round_up(round_up(segment.numel, shard_group_size) / shard_group_size, kAlignment);
    segment.numel = segment.shard_numel * shard_group_size;
  }
}

}  // namespace

bool Unit::trains() const {
  return std::any_of(segments.begin(), segments.end(),
                     [](const Segment& segment) { return segment.trainable; });
}

int64_t Unit::numel() const {
  int64_t total = 0;
  for (const Segment& segment : segments) {
    for (const Extent& extent : segment.extents) total += extent.parameter->numel();
  }
  return total;
}

Partition partition_by_block(models::Model& model, int shard_group_size) {
  Partition partition;
  std::unordered_map<const nn::Parameter*, int> owner;
  for (models::Block* block : model.blocks()) {
    std::vector<int> needed;
    Unit unit;
    unit.name = block->path();
    const int own_index = static_cast<int>(partition.units.size());
    for (nn::Parameter* parameter : block->parameters()) {
      const auto [entry, is_new] = owner.emplace(parameter, own_index);
      if (is_new) {
        Segment& segment = segment_for(unit, *parameter);
        segment.extents.push_back({parameter, segment.numel});
        segment.numel = round_up(segment.numel + parameter->numel(), kAlignment);
      }
      needed.push_back(entry->second);
    }
    if (!unit.segments.empty()) {
      close_segments(unit, shard_group_size);
      partition.units.push_back(std::move(unit));
    }
    std::sort(needed.begin(), needed.end());
    needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
    partition.block_units.push_back(std::move(needed));
  }
  return partition;
}

std::vector<Piece> pieces_of(const Segment& segment, int rank) {
  const int64_t begin = segment.shard_numel * rank;
  const int64_t end = begin + segment.shard_numel;
  std::vector<Piece> pieces;
  for (const Extent& extent : segment.extents) {
    const int64_t first = std::max(extent.begin, begin);
    const int64_t last = std::min(extent.begin + extent.parameter->numel(), end);
    if (first < last) {
      pieces.push_back({extent.parameter, first - extent.begin, first - begin, last - first});
    }
  }
  return pieces;
}

}  // namespace strata::shard
