#include "strata/optim/sub_group_walk.h"

#include <algorithm>

#include "strata/shard/segments.h"

namespace strata::optim {
namespace {

constexpr size_t kStages = 3;

}  // namespace

void add_groups(const SubGroup& segment, int64_t numel, int64_t size,
                std::vector<SubGroup>& groups) {
  const int64_t rounded =
      std::max((size + kGroupElements - 1) / kGroupElements * kGroupElements, kGroupElements);
  for (int64_t begin = 0; begin < numel; begin += rounded) {
    groups.push_back(segment);
    groups.back().begin = begin;
    groups.back().length = std::min(rounded, numel - begin);
  }
}

Overlap overlap_of(const SubGroup& group, int64_t begin, int64_t length) {
  const int64_t first = std::max(begin, group.begin);
  return {first, std::min(begin + length, group.begin + group.length) - first};
}

SubGroupWalk::SubGroupWalk(std::vector<SubGroup> groups)
    : groups_(std::move(groups)), stages_(kStages) {
  size_t num_lanes = 0;
  for (const SubGroup& group : groups_) num_lanes = std::max(num_lanes, group.arrays.size());
  for (size_t lane = 0; lane < num_lanes; ++lane) {
    int64_t largest = 0;
    at::ScalarType type = at::kFloat;
    for (const SubGroup& group : groups_) {
      if (lane >= group.arrays.size() || group.arrays[lane].file == nullptr) continue;
      largest = std::max(largest, group.length);
      type = group.arrays[lane].region.type;
    }
    for (Stage& stage : stages_) {
      stage.emplace_back();
      if (largest > 0) stage.back().buffer = shard::aligned_buffer(largest, type);
    }
  }
}

SubGroupWalk::~SubGroupWalk() { drain(); }

void SubGroupWalk::drain() noexcept {
  for (const SubGroup& group : groups_) {
    for (const RestingArray& array : group.arrays) {
      if (array.file != nullptr) array.file->drain();
    }
  }
  for (Stage& stage : stages_) {
    for (Lane& lane : stage) lane.moving.reset();
  }
}

void SubGroupWalk::start_reads(const SubGroup& group, Stage& stage) {
  for (size_t i = 0; i < group.arrays.size(); ++i) {
    const RestingArray& array = group.arrays[i];
    if (array.file == nullptr) {
      stage[i].part = array.memory.narrow(0, group.begin, group.length);
      continue;
    }
    stage[i].part = stage[i].buffer.narrow(0, 0, group.length);
    stage[i].moving = array.file->read(array.region, group.begin, stage[i].part);
  }
}

void SubGroupWalk::start_writes(const SubGroup& group, Stage& stage) {
  for (size_t i = 0; i < group.arrays.size(); ++i) {
    const RestingArray& array = group.arrays[i];
    if (array.file == nullptr) continue;
    stage[i].moving = array.file->write(array.region, group.begin, stage[i].part);
  }
}

void SubGroupWalk::wait(const SubGroup& group, Stage& stage) {
  for (size_t i = 0; i < group.arrays.size(); ++i) {
    if (!stage[i].moving) continue;
    const shard::HomeFile::Ticket ticket = *stage[i].moving;
    stage[i].moving.reset();
    group.arrays[i].file->wait(ticket);
  }
}

void SubGroupWalk::run(const GroupUpdate& update) {
  const auto stage = [&](size_t group) -> Stage& { return stages_[group % kStages]; };
  std::vector<at::Tensor> parts;
  try {
    if (!groups_.empty()) start_reads(groups_[0], stage(0));
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (i + 1 < groups_.size()) {
        // Its buffers are those of the group before the last: what that wrote must be out.
        if (i + 1 >= kStages) wait(groups_[i + 1 - kStages], stage(i + 1));
        start_reads(groups_[i + 1], stage(i + 1));
      }
      wait(groups_[i], stage(i));
      parts.clear();
      for (size_t lane = 0; lane < groups_[i].arrays.size(); ++lane) {
        parts.push_back(stage(i)[lane].part);
      }
      update(groups_[i], parts);
      start_writes(groups_[i], stage(i));
    }
    for (size_t i = groups_.size() - std::min(groups_.size(), kStages); i < groups_.size(); ++i) {
      wait(groups_[i], stage(i));
    }
  } catch (...) {
    drain();
    throw;
  }
}

std::unique_ptr<SubGroupWalk> walk_of_parameters(shard::UnitStore& store, int64_t sub_group_size) {
  if (store.file() == nullptr) return nullptr;
  std::vector<SubGroup> groups;
  for (const auto& [unit, segment, layout] : shard::trained_segments_of(store)) {
    const shard::Home& home = store.home(unit, segment);
    add_groups(
        {.unit = unit, .segment = segment, .arrays = {{home.value, store.file(), *home.region}}},
        layout->shard_numel, sub_group_size, groups);
  }
  return std::make_unique<SubGroupWalk>(std::move(groups));
}

}  // namespace strata::optim
