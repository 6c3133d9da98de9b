// Walks flat arrays that rest in files group by group: the next group is read while this one is
// updated and the one before is written back. Owns: the buffers. Never: the update.
// Memory: three groups of all arrays that are stored in files.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "strata/shard/home_file.h"
#include "strata/shard/unit_store.h"

namespace strata::optim {

// An array of a rank: in memory (`memory` is it) or a region of a file (`memory` is its view, which
// the walk does not touch).
struct RestingArray {
  at::Tensor memory;
  shard::HomeFile* file = nullptr;
  shard::FileRegion region = {};
};

// Elements [begin, begin + length) of arrays that are updated together.
// Requires: `begin` at a multiple of kGroupElements, and the end too unless it is the arrays' own.
struct SubGroup {
  int unit = 0;
  int segment = 0;
  int64_t begin = 0;
  int64_t length = 0;
  std::vector<RestingArray> arrays;
};

// Borders of groups lie at multiples of this many elements: blocks of any type with whole bytes.
inline constexpr int64_t kGroupElements = static_cast<int64_t>(kDirectAlignment);

// Appends the groups of a segment whose arrays have `numel` elements: as many as `size` elements a
// group (rounded up to kGroupElements) ask for.
void add_groups(const SubGroup& segment, int64_t numel, int64_t size,
                std::vector<SubGroup>& groups);

// The part of [begin, begin + length) of a segment that lies in the group, by the segment's
// elements.
struct Overlap {
  int64_t begin, length;  // length <= 0: none
};
Overlap overlap_of(const SubGroup& group, int64_t begin, int64_t length);

// `parts`: [length] each, in the order of SubGroup::arrays; what is written to them rests again
// where it came from.
using GroupUpdate = std::function<void(const SubGroup& group, std::span<const at::Tensor> parts)>;

class SubGroupWalk {
 public:
  explicit SubGroupWalk(std::vector<SubGroup> groups);
  ~SubGroupWalk();  // waits for transfers
  SubGroupWalk(const SubGroupWalk&) = delete;
  SubGroupWalk& operator=(const SubGroupWalk&) = delete;

  // Throws IoError when a transfer fails; nothing is in flight then, and groups are partly updated.
  void run(const GroupUpdate& update);

 private:
  // A group's arrays on their way in or out.
  struct Lane {
    at::Tensor buffer;  // of the largest group; undefined for an array in memory
    at::Tensor part;    // what the update sees
    std::optional<shard::HomeFile::Ticket> moving;
  };
  using Stage = std::vector<Lane>;

  void start_reads(const SubGroup& group, Stage& stage);
  void start_writes(const SubGroup& group, Stage& stage);
  static void wait(const SubGroup& group, Stage& stage);
  void drain() noexcept;

  std::vector<SubGroup> groups_;
  std::vector<Stage> stages_;  // [3]: reading, updating, writing
};

// Over the trained parameters of a store, for update rules whose state is in memory; null where
// they are stored in memory, too.
std::unique_ptr<SubGroupWalk> walk_of_parameters(shard::UnitStore& store, int64_t sub_group_size);

}  // namespace strata::optim
