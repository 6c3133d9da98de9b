// Rows that wait for all others, to be handed on in another order. Never tokenizes, never packs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strata/base/scratch_file.h"
#include "strata/data/prepare.h"
#include "strata/data/store/file_writer.h"
#include "strata/data/store/token_writer.h"

namespace strata::data {

// Memory: few rows; more of them wait on disk.
class WaitingRows {
 public:
  void add(const ExampleView& row);
  int64_t count() const { return count_; }
  // Hands on the rows with the numbers of `order`, from 0 in the order of add(), and forgets all.
  void replay(const std::vector<int64_t>& order, const Preparation::Keep& take);

 private:
  static constexpr size_t kRoomBytes = size_t{1} << 24;

  void spill();

  int64_t count_ = 0;
  std::vector<Example> few_;
  size_t few_bytes_ = 0;
  std::optional<ScratchFile> file_;
  std::optional<TokenWriter> writer_;
};

// 0, 1, ..., size - 1.
std::vector<int64_t> count_up(int64_t size);
// As Dataset.shuffle(seed) of `datasets` orders its rows.
std::vector<int64_t> shuffled(std::vector<int64_t> order, uint64_t seed);

}  // namespace strata::data
