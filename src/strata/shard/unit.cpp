#include "strata/shard/unit.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "strata/base/error.h"

namespace strata::shard {
namespace {

// Bytes hold scales of four bytes that products read in place.
int64_t alignment_of(const Segment& segment) {
  if (segment.trainable) return kTrainableAlignment;
  return segment.storage == at::kByte ? 4 * kAlignment : kAlignment;
}

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Segment& segment_for(Unit& unit, const nn::Parameter& parameter) {
  for (Segment& segment : unit.segments) {
    if (segment.trainable == parameter.requires_grad() &&
        segment.storage == parameter.storage_type() &&
        segment.keeps_type == parameter.keeps_type()) {
      return segment;
    }
  }
  unit.segments.push_back({.trainable = parameter.requires_grad(),
                           .storage = parameter.storage_type(),
                           .keeps_type = parameter.keeps_type(),
                           .extents = {}});
  return unit.segments.back();
}

void close_segments(Unit& unit, int shard_group_size) {
  std::stable_sort(unit.segments.begin(), unit.segments.end(),
                   [](const Segment& a, const Segment& b) { return a.trainable < b.trainable; });
  for (Segment& segment : unit.segments) {
    segment.shard_numel = round_up(round_up(segment.numel, shard_group_size) / shard_group_size,
                                   alignment_of(segment));
    segment.numel = segment.shard_numel * shard_group_size;
  }
}

// Those of the block, in the order in which they lie: the factors A of adapters one after the
// other, so that those of layers with one input are one matrix to a product (nn/low_rank).
std::vector<nn::Parameter*> as_they_lie(std::vector<nn::Parameter*> parameters) {
  std::ranges::stable_partition(parameters, [](const nn::Parameter* parameter) {
    return parameter->name().ends_with(".lora_A.weight");
  });
  return parameters;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_layer_classes(const std::vector<models::Block*>& blocks,
                         const std::vector<std::string>& wanted) {
  std::vector<std::string> known;
  for (const auto kind :
       {models::BlockKind::kLayer, models::BlockKind::kEmbedding, models::BlockKind::kHead}) {
    for (models::Block* block : blocks) {
      if (block->kind() == kind && !contains(known, block->class_name())) {
        known.push_back(block->class_name());
      }
    }
  }
  for (const std::string& name : wanted) {
    if (contains(known, name)) continue;
    throw ConfigError(
        "fsdp_transformer_layer_cls_to_wrap: found \"{}\", expected a block of this model ({}); "
        "name one of them or leave the setting out",
        name, fmt::join(known, ", "));
  }
}

// Whether the block starts a unit, given what the unit before it holds.
class Wrapping {
 public:
  Wrapping(const std::vector<models::Block*>& blocks, const WrapPolicy& policy) : policy_(policy) {
    if (policy.kind == WrapPolicy::Kind::kBlock) check_layer_classes(blocks, policy.layer_classes);
  }

  bool starts_unit(models::Block& block, bool is_first) {
    const bool own = is_own_unit(block);
    const bool starts = is_first || closed_ || own;
    if (starts) numel_ = 0;
    for (nn::Parameter* parameter : block.parameters()) {
      if (seen_.insert(parameter).second) numel_ += parameter->numel();
    }
    closed_ = own || (policy_.kind == WrapPolicy::Kind::kSize && numel_ >= policy_.min_num_params);
    return starts;
  }

 private:
  bool is_own_unit(models::Block& block) const {
    if (policy_.kind != WrapPolicy::Kind::kBlock) return false;
    return block.kind() != models::BlockKind::kLayer || policy_.layer_classes.empty() ||
           contains(policy_.layer_classes, block.class_name());
  }

  const WrapPolicy& policy_;
  std::unordered_set<const nn::Parameter*> seen_;
  int64_t numel_ = 0;
  bool closed_ = false;
};

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

Partition partition_model(models::Model& model, int shard_group_size, const WrapPolicy& policy) {
  Partition partition;
  std::unordered_map<const nn::Parameter*, int> owner;
  const std::vector<models::Block*> blocks = model.blocks();
  Wrapping wrapping(blocks, policy);
  Unit unit;
  const auto close_unit = [&] {
    if (unit.segments.empty()) return;
    close_segments(unit, shard_group_size);
    partition.units.push_back(std::move(unit));
  };
  for (models::Block* block : blocks) {
    if (wrapping.starts_unit(*block, block == blocks.front())) {
      close_unit();
      unit = Unit{block->path(), {}};
    }
    std::vector<int> needed;
    const int own_index = static_cast<int>(partition.units.size());
    for (nn::Parameter* parameter : as_they_lie(block->parameters())) {
      const auto [entry, is_new] = owner.emplace(parameter, own_index);
      if (is_new) {
        Segment& segment = segment_for(unit, *parameter);
        segment.extents.push_back({parameter, segment.numel});
        segment.numel = round_up(segment.numel + parameter->stored_numel(), alignment_of(segment));
      }
      needed.push_back(entry->second);
    }
    std::sort(needed.begin(), needed.end());
    needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
    partition.block_units.push_back(std::move(needed));
  }
  close_unit();
  return partition;
}

std::vector<Piece> pieces_of(const Segment& segment, int rank) {
  const int64_t begin = segment.shard_numel * rank;
  const int64_t end = begin + segment.shard_numel;
  std::vector<Piece> pieces;
  for (const Extent& extent : segment.extents) {
    const int64_t first = std::max(extent.begin, begin);
    const int64_t last = std::min(extent.begin + extent.parameter->stored_numel(), end);
    if (first < last) {
      pieces.push_back({extent.parameter, first - extent.begin, first - begin, last - first});
    }
  }
  return pieces;
}

}  // namespace strata::shard
