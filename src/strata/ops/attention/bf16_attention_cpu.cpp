// Products of attention of pairs of bf16 in the tiles of the processor's matrix unit. Scores,
// softmax and sums are fp32; probabilities and the gradients of scores are rounded to bf16 where
// they are factors. Owns: how the factors lie. Never: instructions (tile_product_cpu.cpp).
//
// A lane is a pair of elements that follow each other along the inner dimension. A product's left
// side lies row by row, its right side lane by lane, kPart columns beside each other. The sums of
// add_transposed() are transposed, too: so scores become its right side as they lie, two rows a
// lane.
#include <algorithm>
#include <cstring>

#include "strata/ops/attention/attention_products.h"
#include "strata/ops/attention/score_rounding.h"
#include "strata/ops/matmul/bf16_products.h"
#include "strata/ops/matmul/block_product.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

// Rows and columns of a product, two tiles of the matrix unit each, and elements of a group of its
// lanes.
constexpr int64_t kPart = 32;
static_assert(kPart == 2 * kRowsOfTile && kPart == 2 * kLanesOfTile);

// With fewer keys or channels attention takes little of a step and gains little; fp32 is the more
// precise. In fewer rows the tiles would be mostly empty.
constexpr int64_t kFewestKeys = 256, kFewestRows = 16, kFewestChannels = 32;

// Fewer rows where they see a narrow window of keys, all of which are one block then: less of it is
// masked, and a block that has all of a row needs no sum of its products with what was rounded
// (attention_cpu.cpp).
AttentionBlocks blocks_of(const AttentionArguments& a) {
  constexpr AttentionBlocks kUsual = {.rows = 256, .keys = 256, .key_multiple = kPart};
  constexpr int64_t kNarrowRows = 96, kMostKeys = 512;
  const int64_t queries = std::max<int64_t>(1, kNarrowRows / (a.q.heads / a.k.heads));
  const int64_t keys = queries + (a.causal ? a.window : 2 * a.window) + kAlignedKeys;
  if (a.window == 0 || keys > kMostKeys) return kUsual;
  return {.rows = kNarrowRows, .keys = round_up(keys, kPart), .key_multiple = kPart};
}

uint16_t* as_bf16(float* lanes) { return reinterpret_cast<uint16_t*>(lanes); }

// to [n / 2, columns] of pairs: rows 2 i and 2 i + 1 of [n, stride].
STRATA_VECTORIZED void pair_rows(const uint16_t* from, int64_t stride, int64_t n, int64_t columns,
                                 uint32_t* to) {
  for (int64_t i = 0; i < n; i += 2, to += columns) {
    const uint16_t* low = from + i * stride;
    const uint16_t* high = low + stride;
    for (int64_t j = 0; j < columns; ++j) to[j] = low[j] | static_cast<uint32_t>(high[j]) << 16;
  }
}

STRATA_VECTORIZED float dot_bf16(const uint16_t* a, const uint16_t* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += from_bf16(a[i]) * from_bf16(b[i]);
  return sum;
}

// mean [columns] of the n rows of [n, stride].
STRATA_VECTORIZED void mean_row(const uint16_t* from, int64_t stride, int64_t n, int64_t columns,
                                float* mean) {
  for (int64_t j = 0; j < columns; ++j) mean[j] = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < columns; ++j) mean[j] += from_bf16(from[i * stride + j]);
  }
  for (int64_t j = 0; j < columns; ++j) mean[j] /= static_cast<float>(n);
}

STRATA_VECTORIZED void subtract_scaled(float* row, const float* from, float factor, int64_t n) {
  for (int64_t j = 0; j < n; ++j) row[j] -= factor * from[j];
}

STRATA_VECTORIZED void scale_row(float* row, int64_t n, float factor) {
  for (int64_t j = 0; j < n; ++j) row[j] *= factor;
}

class Bf16AttentionProducts final : public AttentionProducts {
 public:
  Bf16AttentionProducts(const AttentionArguments& a, const TaskRange& range,
                        AttentionScratch& scratch);

  HeadFactors load_heads(const HeadsView& view, FactorUse use) override;
  RowFactors take_rows(FactorUse use) override;
  void load_queries(const QueryBlock& block, const RowFactors& rows) const override {
    load_rows(block, a_.q, rows);
  }
  void load_rows(const QueryBlock& block, const HeadsView& view,
                 const RowFactors& rows) const override;
  void dot_rows_with(const QueryBlock& block, const RowFactors& rows, const HeadsView& view,
                     float* scratch, float* dots) const override;
  float* take_scores() override { return scratch_.take(padded_rows_ * score_stride_); }
  void make_scores(const QueryBlock& block, const RowFactors& rows, const HeadFactors& heads,
                   int64_t key, int64_t keys, float* scores) const override;
  void scale_query_scores(const ScoreBlock& scores) const override;
  ScoreFactors factors_of(const ScoreBlock& scores, FactorUse use) override;
  float* take_row_sums() override { return scratch_.take(padded_rows_ * width_); }
  void apply_scores(const QueryBlock& block, const ScoreFactors& scores, const HeadFactors& heads,
                    int64_t key, int64_t keys, bool add, float* sums) const override;
  void apply_gradients(const QueryBlock& block, const ScoreFactors& gradients,
                       const HeadFactors& heads, int64_t key, int64_t keys, bool add,
                       float* sums) const override;
  float* take_head_sums() override;
  void add_transposed(const QueryBlock& block, const ScoreFactors& scores, const RowFactors& rows,
                      int64_t key, int64_t keys, float* sums) const override;
  void write_key_gradients(const float* sums, const HeadsView& to) override {
    write_head_sums(sums, a_.scale, to);
  }
  void write_value_gradients(const float* sums, const HeadsView& to) override {
    write_head_sums(sums, 1.0f, to);
  }

 private:
  void round_rows(const ScoreBlock& block, int64_t begin, int64_t end, int64_t columns) const;
  void round_row_pairs(const ScoreBlock& block, int64_t begin, int64_t end, int64_t columns) const;
  void write_head_sums(const float* sums, float factor, const HeadsView& to);

  // Rows of a product that has `n`.
  static int64_t product_rows(int64_t n) { return n > kRowsOfTile ? kPart : kRowsOfTile; }

  // Calls f(first row, rows, how many keys the last of them sees) for the parts of a block.
  template <typename F>
  void for_row_parts(int64_t rows, F f) const {
    for (int64_t row = 0; row < rows; row += kPart) {
      const int64_t part = std::min(kPart, rows - row);
      f(row, part, visible_[row + part - 1]);
    }
  }

  const int64_t lanes_;        // of a head's channels, in whole groups
  const int64_t padded_keys_;  // in whole groups
  const int64_t padded_rows_;
  // Both not powers of two, so that rows spread over the cache.
  const int64_t row_lanes_;     // between rows of scores as factors
  const int64_t column_lanes_;  // between channels of rows that are transposed
  float* const rounded_rows_;   // [padded_rows_, row_lanes_]
  float* const rounded_pairs_;  // [padded_rows_ / 2, score_stride_]
  float* const added_;          // to rows of scores by rounding them: [padded_rows_]
};

Bf16AttentionProducts::Bf16AttentionProducts(const AttentionArguments& a, const TaskRange& range,
                                             AttentionScratch& scratch)
    : AttentionProducts(a, range, scratch, blocks_of(a)),
      lanes_(round_up(a.channels, kPart) / 2),
      padded_keys_(round_up(range.keys, kPart)),
      padded_rows_(round_up(max_rows_, kPart)),
      row_lanes_(block_keys_ / 2 + kLanesOfTile),
      column_lanes_(padded_rows_ / 2 + kLanesOfTile),
      rounded_rows_(scratch.take(padded_rows_ * row_lanes_)),
      rounded_pairs_(scratch.take(padded_rows_ / 2 * score_stride_)),
      added_(scratch.take(padded_rows_)) {}

// As rows: [padded_keys_ / 2, width_] of pairs of keys. As columns: panels of kPart keys, each
// [lanes_, kPart] of pairs of channels.
HeadFactors Bf16AttentionProducts::load_heads(const HeadsView& view, FactorUse use) {
  float* rows = scratch_.take(padded_keys_ * lanes_);
  const auto bytes = static_cast<size_t>(a_.channels) * sizeof(uint16_t);
  std::fill(rows + task_.keys * lanes_, rows + padded_keys_ * lanes_, 0.0f);
  for (int64_t j = 0; j < task_.keys; ++j) {
    uint16_t* row = as_bf16(rows + j * lanes_);
    std::memcpy(row, head_address(a_.type, view, task_.first_key + j, task_.kv_head), bytes);
    std::fill(row + a_.channels, row + 2 * lanes_, uint16_t{0});
  }
  HeadFactors factors;
  if (use != FactorUse::kTransposed) {
    factors.as_rows = scratch_.take(padded_keys_ / 2 * width_);
    pair_rows(as_bf16(rows), 2 * lanes_, padded_keys_, width_,
              reinterpret_cast<uint32_t*>(factors.as_rows));
  }
  if (use == FactorUse::kBothWays) {
    factors.mean = scratch_.take(width_);
    mean_row(as_bf16(rows), 2 * lanes_, task_.keys, width_, factors.mean);
  }
  if (use != FactorUse::kOneWay) {
    factors.as_columns = scratch_.take(padded_keys_ * lanes_);
    for (int64_t key = 0; key < padded_keys_; key += kPart) {
      transpose_block(rows + key * lanes_, lanes_, kPart, lanes_, factors.as_columns + key * lanes_,
                      kPart);
    }
  }
  return factors;
}

// Rows: [padded_rows_, lanes_] of pairs of channels. Transposed: [width_, column_lanes_] of pairs
// of rows.
RowFactors Bf16AttentionProducts::take_rows(FactorUse use) {
  RowFactors factors{.rows = scratch_.take(padded_rows_ * lanes_)};
  if (use != FactorUse::kOneWay) factors.transposed = scratch_.take(width_ * column_lanes_);
  return factors;
}

void Bf16AttentionProducts::load_rows(const QueryBlock& block, const HeadsView& view,
                                      const RowFactors& rows) const {
  const auto bytes = static_cast<size_t>(a_.channels) * sizeof(uint16_t);
  for_rows(block, view, [&](const void* from, int64_t r) {
    uint16_t* row = as_bf16(rows.rows + r * lanes_);
    std::memcpy(row, from, bytes);
    std::fill(row + a_.channels, row + 2 * lanes_, uint16_t{0});
  });
  const int64_t padded = round_up(block.rows, kPart);
  std::fill(rows.rows + block.rows * lanes_, rows.rows + padded * lanes_, 0.0f);
  if (rows.transposed == nullptr) return;
  float of_part[kPart / 2 * kLanesOfTile];
  for (int64_t row = 0; row < padded; row += kPart) {
    for (int64_t channel = 0; channel < width_; channel += kLanesOfTile) {
      pair_rows(as_bf16(rows.rows + row * lanes_) + channel, 2 * lanes_, kPart, kLanesOfTile,
                reinterpret_cast<uint32_t*>(of_part));
      transpose_block(of_part, kLanesOfTile, kPart / 2, kLanesOfTile,
                      rows.transposed + channel * column_lanes_ + row / 2, column_lanes_);
    }
  }
}

void Bf16AttentionProducts::dot_rows_with(const QueryBlock& block, const RowFactors& rows,
                                          const HeadsView& view, float* /*scratch*/,
                                          float* dots) const {
  for_rows(block, view, [&](const void* row, int64_t r) {
    dots[r] =
        dot_bf16(as_bf16(rows.rows + r * lanes_), static_cast<const uint16_t*>(row), a_.channels);
  });
}

void Bf16AttentionProducts::make_scores(const QueryBlock& block, const RowFactors& rows,
                                        const HeadFactors& heads, int64_t key, int64_t keys,
                                        float* scores) const {
  for_row_parts(block.rows, [&](int64_t row, int64_t part, int64_t seen) {
    for (int64_t panel = 0; panel < seen; panel += kPart) {
      tile_product({.rows = product_rows(part),
                    .columns = product_rows(std::min(seen, keys) - panel),
                    .inner = lanes_,
                    .a = rows.rows + row * lanes_,
                    .a_row_stride = lanes_,
                    .a_inner_stride = kLanesOfTile,
                    .b = heads.as_columns + (key + panel) * lanes_,
                    .b_stride = kPart,
                    .c = scores + row * score_stride_ + panel,
                    .c_stride = score_stride_});
    }
  });
}

void Bf16AttentionProducts::scale_query_scores(const ScoreBlock& block) const {
  for (int64_t r = 0; r < block.rows; ++r) {
    scale_row(block.scores + r * block.stride, padded_columns(block.visible[r]), a_.scale);
  }
}

void Bf16AttentionProducts::round_rows(const ScoreBlock& block, int64_t begin, int64_t end,
                                       int64_t columns) const {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t n = r < block.rows ? padded_columns(block.visible[r]) : 0;
    added_[r] = round_row(block.scores + r * block.stride, n, columns,
                          as_bf16(rounded_rows_ + r * row_lanes_));
  }
}

void Bf16AttentionProducts::round_row_pairs(const ScoreBlock& block, int64_t begin, int64_t end,
                                            int64_t columns) const {
  for (int64_t r = begin; r < end; r += 2) {
    const float* low = block.scores + r * block.stride;
    const int64_t num_low = r < block.rows ? padded_columns(block.visible[r]) : 0;
    const bool has_high = r + 1 < block.rows;
    const int64_t num_high = has_high ? padded_columns(block.visible[r + 1]) : num_low;
    // A missing row stands for zeros: those of dout and q are. It must not be a NaN.
    round_row_pair(low, num_low, has_high ? low + block.stride : low, num_high, columns,
                   reinterpret_cast<uint32_t*>(rounded_pairs_ + r / 2 * score_stride_));
  }
}

ScoreFactors Bf16AttentionProducts::factors_of(const ScoreBlock& block, FactorUse use) {
  for_row_parts(block.rows, [&](int64_t row, int64_t part, int64_t seen) {
    const int64_t columns = round_up(seen, kPart);
    if (use != FactorUse::kTransposed) round_rows(block, row, row + product_rows(part), columns);
    if (use != FactorUse::kOneWay) round_row_pairs(block, row, row + kPart, columns);
  });
  return {.rows = rounded_rows_, .transposed = rounded_pairs_};
}

void Bf16AttentionProducts::apply_scores(const QueryBlock& block, const ScoreFactors& scores,
                                         const HeadFactors& heads, int64_t key, int64_t /*keys*/,
                                         bool add, float* sums) const {
  for_row_parts(block.rows, [&](int64_t row, int64_t part, int64_t seen) {
    for (int64_t channel = 0; seen > 0 && channel < width_; channel += kPart) {
      tile_product({.rows = product_rows(part),
                    .columns = product_rows(width_ - channel),
                    .inner = round_up(seen, kPart) / 2,
                    .a = scores.rows + row * row_lanes_,
                    .a_row_stride = row_lanes_,
                    .a_inner_stride = kLanesOfTile,
                    .b = heads.as_rows + key / 2 * width_ + channel,
                    .b_stride = width_,
                    .c = sums + row * width_ + channel,
                    .c_stride = width_,
                    .add = add});
    }
  });
}

// A row's gradients add up to nothing, and what keys have in common cancels in its sum. It would
// not in the sum of what rounding added: there it is taken out.
void Bf16AttentionProducts::apply_gradients(const QueryBlock& block, const ScoreFactors& gradients,
                                            const HeadFactors& heads, int64_t key, int64_t keys,
                                            bool add, float* sums) const {
  apply_scores(block, gradients, heads, key, keys, add, sums);
  for (int64_t r = 0; r < block.rows; ++r) {
    subtract_scaled(sums + r * width_, heads.mean, added_[r], width_);
  }
}

// Panels of kPart keys, each [width_, kPart].
float* Bf16AttentionProducts::take_head_sums() {
  float* sums = scratch_.take(padded_keys_ * width_);
  std::fill_n(sums, padded_keys_ * width_, 0.0f);
  return sums;
}

void Bf16AttentionProducts::add_transposed(const QueryBlock& block, const ScoreFactors& scores,
                                           const RowFactors& rows, int64_t key, int64_t keys,
                                           float* sums) const {
  const int64_t padded = round_up(block.rows, kPart);
  int64_t row = 0;  // of the first part that sees the panel
  for (int64_t panel = 0; panel < keys; panel += kPart) {
    while (visible_[std::min(row + kPart, block.rows) - 1] <= panel) row += kPart;
    for (int64_t channel = 0; channel < width_; channel += kPart) {
      tile_product({.rows = product_rows(width_ - channel),
                    .columns = product_rows(keys - panel),
                    .inner = (padded - row) / 2,
                    .a = rows.transposed + channel * column_lanes_ + row / 2,
                    .a_row_stride = column_lanes_,
                    .a_inner_stride = kLanesOfTile,
                    .b = scores.transposed + row / 2 * score_stride_ + panel,
                    .b_stride = score_stride_,
                    .c = sums + (key + panel) * width_ + channel * kPart,
                    .c_stride = kPart,
                    .add = true});
    }
  }
}

void Bf16AttentionProducts::write_head_sums(const float* sums, float factor, const HeadsView& to) {
  float* rows = scratch_.take(kPart * width_);
  for (int64_t key = 0; key < task_.keys; key += kPart) {
    const int64_t keys = std::min(kPart, task_.keys - key);
    for (int64_t channel = 0; channel < width_; channel += kLanesOfTile) {
      transpose_block(sums + key * width_ + channel * kPart, kPart, kLanesOfTile, kPart,
                      rows + channel, width_);
    }
    scale_row(rows, keys * width_, factor);
    for (int64_t j = 0; j < keys; ++j) {
      narrow(rows + j * width_,
             static_cast<uint16_t*>(
                 head_address(a_.type, to, task_.first_key + key + j, task_.kv_head)),
             a_.channels);
    }
  }
}

}  // namespace

bool attention_uses_tiles(const AttentionArguments& a) {
  return a.type == Element::kBFloat16 && bf16_products() == Bf16Products::kTiles;
}

std::unique_ptr<AttentionProducts> attention_products(const AttentionArguments& a,
                                                      const TaskRange& range,
                                                      AttentionScratch& scratch) {
  const int64_t rows = range.queries * (a.q.heads / a.k.heads);
  if (a.has_positions() || !attention_uses_tiles(a) || a.channels < kFewestChannels ||
      rows < kFewestRows || range.keys < kFewestKeys) {
    return fp32_attention_products(a, range, scratch);
  }
  return std::make_unique<Bf16AttentionProducts>(a, range, scratch);
}

}  // namespace strata::ops::cpu
