// Some rows of c by one packed panel of columns. Owns: the order of tiles, and the rounding of
// those of a bf16 c. Never: packing, threads.
#pragma once

#include <cstdint>

#include "strata/ops/matmul/matmul_task.h"
#include "strata/ops/matmul/rounded_tiles.h"

namespace strata::ops::cpu {

// Rows [begin, begin + count) and columns from first_column on of c, and what is needed to fill
// them.
struct RowBlock {
  int64_t begin, count;
  int64_t first_column;
  const float* packed_rows;  // a of the block, panel by panel
  // Where it is summed: an fp32 tensor itself; else scratch, or null where every tile is rounded as
  // soon as it is summed (rounds_tiles).
  float* sums;
  int64_t sums_stride;
};

// A packed panel of b and its place.
struct ColumnPanel {
  const float* data;
  int64_t begin, width;  // columns of the block
  int64_t lane, lanes;
};

// Tiles of a thread that are summed in one go and have no other place, each rounded while the unit
// works on the one after it; the last one at the end.
class RoundedTiles {
 public:
  explicit RoundedTiles(const MatmulArguments& m) : m_(m) {}
  ~RoundedTiles() { round_last(); }
  RoundedTiles(const RoundedTiles&) = delete;
  RoundedTiles& operator=(const RoundedTiles&) = delete;

  // Where the next one is summed.
  float* room() { return tiles_[next_]; }
  // It was begun, and belongs to `c`.
  void add(TileSize size, void* c);

 private:
  void round_last();

  const MatmulArguments& m_;
  TileSize size_{};
  uint16_t* c_ = nullptr;
  int next_ = 0;
  alignas(64) float tiles_[2][kTileRowsAtMost * kTileColumns];
};

// The columns of the panel in c of the block (+)= rows x panel. `next`, if any, is what is packed
// soon: its memory is asked for between the tiles. Requires a TileScope in the unit.
void multiply_panel(const MatmulTask& task, const RowBlock& block, const ColumnPanel& panel,
                    RoundedTiles& rounded, const Panel* next = nullptr);

// After the last range of lanes: a bf16 c from what was summed in scratch, if it was. What stood
// in c is added only now: a tile would have to wait for its conversion before it begins.
void round_sums(const MatmulTask& task, const RowBlock& block, int64_t columns);

}  // namespace strata::ops::cpu
