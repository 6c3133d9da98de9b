// Products of attention in fp32, of rows that are widened where they are bf16. Never: arithmetic of
// its own.
#include <algorithm>

#include "strata/ops/attention/attention_products.h"
#include "strata/ops/matmul/block_product.h"

namespace strata::ops::cpu {

namespace {

constexpr AttentionBlocks kBlocks = {.rows = 96, .keys = 256, .key_multiple = kColumnMultiple};

// Keys that are transposed side by side, as wide as a tile of matmul/block_product.h.
constexpr int64_t kPanelKeys = kAlignedKeys;

// Rows of a block that are cut to what they see together: two tiles of matmul/block_product.h.
constexpr int64_t kPartRows = 12;

class Fp32AttentionProducts final : public AttentionProducts {
 public:
  Fp32AttentionProducts(const AttentionArguments& a, const TaskRange& range,
                        AttentionScratch& scratch)
      : AttentionProducts(a, range, scratch, kBlocks) {}

  HeadFactors load_heads(const HeadsView& view, FactorUse use) override;
  RowFactors take_rows(FactorUse use) override;
  void load_queries(const QueryBlock& block, const RowFactors& rows) const override;
  void load_rows(const QueryBlock& block, const HeadsView& view,
                 const RowFactors& rows) const override;
  void dot_rows_with(const QueryBlock& block, const RowFactors& rows, const HeadsView& view,
                     float* scratch, float* dots) const override;
  float* take_scores() override { return scratch_.take(max_rows_ * score_stride_); }
  void make_scores(const QueryBlock& block, const RowFactors& rows, const HeadFactors& heads,
                   int64_t key, int64_t keys, float* scores) const override;
  // The queries are scaled.
  void scale_query_scores(const ScoreBlock&) const override {}
  ScoreFactors factors_of(const ScoreBlock& block, FactorUse) override {
    return {.rows = block.scores, .transposed = block.scores};
  }
  float* take_row_sums() override { return scratch_.take(max_rows_ * width_); }
  void apply_scores(const QueryBlock& block, const ScoreFactors& scores, const HeadFactors& heads,
                    int64_t key, int64_t keys, bool add, float* sums) const override;
  void apply_gradients(const QueryBlock& block, const ScoreFactors& gradients,
                       const HeadFactors& heads, int64_t key, int64_t keys, bool add,
                       float* sums) const override {
    apply_scores(block, gradients, heads, key, keys, add, sums);
  }
  float* take_head_sums() override;
  void add_transposed(const QueryBlock& block, const ScoreFactors& scores, const RowFactors& rows,
                      int64_t key, int64_t keys, float* sums) const override;
  void write_key_gradients(const float* sums, const HeadsView& to) override;
  void write_value_gradients(const float* sums, const HeadsView& to) override;

 private:
  int64_t panel_width(int64_t key) const {
    return std::min(kPanelKeys, padded_columns(task_.keys - key));
  }
  void transpose_heads(const float* heads, float* transposed) const;
  // Rows of a block as fp32: the tensor's own, or in `scratch` [rows, width_].
  HeadRows head_rows(const QueryBlock& block, const HeadsView& view, float* scratch) const;

  // Calls f(row, rows, how many of them the last row sees) for the parts of a block that see
  // something of the keys [from, from + keys).
  template <typename F>
  void for_row_parts(const QueryBlock& block, int64_t from, int64_t keys, F f) const {
    int64_t row = 0;
    while (row + kPartRows < block.rows && visible_[row + kPartRows - 1] <= from) row += kPartRows;
    for (int64_t rows = 0; row < block.rows; row += rows) {
      rows = block.rows - row;
      if (visible_[row] < from + keys) rows = std::min(kPartRows, rows);
      f(row, rows, std::min(keys, visible_[row + rows - 1] - from));
    }
  }
};

// Heads lie in fp32, [keys, width_] with zeros in the padding, and transposed in panels of
// kPanelKeys keys, each [channels, panel_width()]. A strided tensor is copied too: rows some KiB
// apart would push each other out of the cache.
HeadFactors Fp32AttentionProducts::load_heads(const HeadsView& view, FactorUse use) {
  HeadFactors factors{.as_rows = scratch_.take(task_.keys * width_)};
  for (int64_t j = 0; j < task_.keys; ++j) {
    float* row = factors.as_rows + j * width_;
    copy_row(a_.type, head_address(a_.type, view, task_.first_key + j, task_.kv_head), a_.channels,
             row);
    std::fill(row + a_.channels, row + width_, 0.0f);
  }
  if (use == FactorUse::kOneWay) return factors;
  factors.as_columns = scratch_.take(a_.channels * padded_columns(task_.keys));
  transpose_heads(factors.as_rows, factors.as_columns);
  return factors;
}

void Fp32AttentionProducts::transpose_heads(const float* heads, float* transposed) const {
  for (int64_t key = 0; key < task_.keys; key += kPanelKeys) {
    const int64_t keys = std::min(kPanelKeys, task_.keys - key);
    const int64_t width = panel_width(key);
    float* panel = transposed + key * a_.channels;
    transpose_block(heads + key * width_, width_, keys, a_.channels, panel, width);
    for (int64_t c = 0; c < a_.channels; ++c) {
      std::fill(panel + c * width + keys, panel + (c + 1) * width, 0.0f);
    }
  }
}

RowFactors Fp32AttentionProducts::take_rows(FactorUse) {
  float* rows = scratch_.take(max_rows_ * width_);
  return {.rows = rows, .transposed = rows};
}

HeadRows Fp32AttentionProducts::head_rows(const QueryBlock& block, const HeadsView& view,
                                          float* scratch) const {
  const int64_t head = task_.kv_head * group_;
  const void* first = head_address(a_.type, view, task_.first_query + block.begin, head);
  HeadRows rows{static_cast<const float*>(first),
                block.count,
                group_,
                a_.channels,
                view.token_stride,
                view.head_stride};
  if (a_.type == Element::kFloat) return rows;
  for_rows(block, view, [&](const void* from, int64_t r) {
    copy_row(a_.type, from, a_.channels, scratch + r * width_);
  });
  rows.data = scratch;
  rows.token_stride = group_ * width_;
  rows.head_stride = width_;
  return rows;
}

void Fp32AttentionProducts::load_queries(const QueryBlock& block, const RowFactors& rows) const {
  scaled_rows(head_rows(block, a_.q, rows.rows), a_.scale, rows.rows, width_);
}

void Fp32AttentionProducts::load_rows(const QueryBlock& block, const HeadsView& view,
                                      const RowFactors& rows) const {
  scaled_rows(head_rows(block, view, rows.rows), 1.0f, rows.rows, width_);
}

void Fp32AttentionProducts::dot_rows_with(const QueryBlock& block, const RowFactors& rows,
                                          const HeadsView& view, float* scratch,
                                          float* dots) const {
  dot_rows(head_rows(block, view, scratch), rows.rows, width_, dots);
}

void Fp32AttentionProducts::make_scores(const QueryBlock& block, const RowFactors& rows,
                                        const HeadFactors& heads, int64_t key, int64_t keys,
                                        float* scores) const {
  for (int64_t panel = 0; panel < keys; panel += kPanelKeys) {
    const int64_t panel_keys = std::min(kPanelKeys, keys - panel);
    for_row_parts(block, panel, panel_keys, [&](int64_t row, int64_t part, int64_t seen) {
      block_product({.rows = part,
                     .columns = padded_columns(seen),
                     .inner = a_.channels,
                     .a = rows.rows + row * width_,
                     .a_row_stride = width_,
                     .a_inner_stride = 1,
                     .b = heads.as_columns + (key + panel) * a_.channels,
                     .b_stride = panel_width(key + panel),
                     .c = scores + row * score_stride_ + panel,
                     .c_stride = score_stride_});
    });
  }
}

void Fp32AttentionProducts::apply_scores(const QueryBlock& block, const ScoreFactors& scores,
                                         const HeadFactors& heads, int64_t key, int64_t keys,
                                         bool add, float* sums) const {
  for_row_parts(block, 0, keys, [&](int64_t row, int64_t part, int64_t seen) {
    block_product({.rows = part,
                   .columns = width_,
                   .inner = seen,
                   .a = scores.rows + row * score_stride_,
                   .a_row_stride = score_stride_,
                   .a_inner_stride = 1,
                   .b = heads.as_rows + key * width_,
                   .b_stride = width_,
                   .c = sums + row * width_,
                   .c_stride = width_,
                   .add = add});
  });
}

float* Fp32AttentionProducts::take_head_sums() {
  float* sums = scratch_.take(task_.keys * width_);
  std::fill_n(sums, task_.keys * width_, 0.0f);
  return sums;
}

void Fp32AttentionProducts::add_transposed(const QueryBlock& block, const ScoreFactors& scores,
                                           const RowFactors& rows, int64_t first_key, int64_t keys,
                                           float* sums) const {
  int64_t row = 0;  // the first that sees the key
  for (int64_t key = 0, count = 0; key < keys; key += count) {
    while (row < block.rows && visible_[row] <= key) ++row;
    const int64_t parts = std::max<int64_t>(1, (visible_[row] - key) / kPartRows);
    count = visible_[row] < keys ? std::min(keys - key, parts * kPartRows) : keys - key;
    block_product({.rows = count,
                   .columns = width_,
                   .inner = block.rows - row,
                   .a = scores.transposed + row * score_stride_ + key,
                   .a_row_stride = 1,
                   .a_inner_stride = score_stride_,
                   .b = rows.transposed + row * width_,
                   .b_stride = width_,
                   .c = sums + (first_key + key) * width_,
                   .c_stride = width_,
                   .add = true});
  }
}

void Fp32AttentionProducts::write_key_gradients(const float* sums, const HeadsView& to) {
  write_value_gradients(sums, to);
}

void Fp32AttentionProducts::write_value_gradients(const float* sums, const HeadsView& to) {
  for (int64_t j = 0; j < task_.keys; ++j) {
    void* row = head_address(a_.type, to, task_.first_key + j, task_.kv_head);
    if (a_.type == Element::kFloat) {
      std::copy_n(sums + j * width_, a_.channels, static_cast<float*>(row));
    } else {
      narrow(sums + j * width_, static_cast<uint16_t*>(row), a_.channels);
    }
  }
}

}  // namespace

std::unique_ptr<AttentionProducts> fp32_attention_products(const AttentionArguments& a,
                                                           const TaskRange& range,
                                                           AttentionScratch& scratch) {
  return std::make_unique<Fp32AttentionProducts>(a, range, scratch);
}

}  // namespace strata::ops::cpu
