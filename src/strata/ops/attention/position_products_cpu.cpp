// Products with vectors of relative positions (position_products.h). Never: arithmetic of its own.
#include "strata/ops/attention/position_products.h"

#include <algorithm>

#include "strata/ops/matmul/block_product.h"

namespace strata::ops::cpu {

namespace {

// Vectors that are transposed side by side, as wide as a tile of matmul/block_product.h.
constexpr int64_t kPanelPlaces = 64;
// Rows, or vectors, that are cut to the places that they have in common: two tiles.
constexpr int64_t kPart = 12;

int64_t aligned_place(int64_t place) { return place / kColumnMultiple * kColumnMultiple; }

}  // namespace

PositionTable::PositionTable(Element type, int64_t channels, const Source& source,
                             AttentionScratch& scratch)
    : channels_(channels),
      width_(padded_columns(channels)),
      count_(source.count),
      rows_(scratch.take(source.count * width_)),
      columns_(scratch.take(channels * padded_columns(source.count))),
      gradients_(source.gradients),
      gradient_stride_(source.step * width_) {
  load(type, source);
}

int64_t PositionTable::panel_width(int64_t place) const {
  return std::min(kPanelPlaces, padded_columns(count_ - place));
}

void PositionTable::load(Element type, const Source& source) {
  for (int64_t p = 0; p < count_; ++p) {
    float* row = rows_ + p * width_;
    copy_row(type, head_address(type, source.view, source.first + p * source.step, source.head),
             channels_, row);
    if (source.factor != 1) scaled_copy(row, source.factor, row, channels_);
    std::fill(row + channels_, row + width_, 0.0f);
  }
  for (int64_t place = 0; place < count_; place += kPanelPlaces) {
    const int64_t places = std::min(kPanelPlaces, count_ - place), width = panel_width(place);
    float* panel = columns_ + place * channels_;
    transpose_block(rows_ + place * width_, width_, places, channels_, panel, width);
    for (int64_t c = 0; c < channels_; ++c) {
      std::fill(panel + c * width + places, panel + (c + 1) * width, 0.0f);
    }
  }
}

// Column 0 of a row of products is the vector at aligned_place(block.place).
SlantedScores PositionTable::multiply(const SlantedBlock& block, float* room) const {
  const int64_t wide = stride(block.others + block.count), origin = aligned_place(block.place);
  for (int64_t row = 0; row < block.count; row += kPart) {
    const int64_t part = std::min(kPart, block.count - row);
    const int64_t first = block.place + block.count - row - part;
    const int64_t end = first + part - 1 + block.others;
    for (int64_t place = aligned_place(first), next = 0; place < end; place = next) {
      const int64_t panel = place / kPanelPlaces * kPanelPlaces;
      next = std::min(end, panel + kPanelPlaces);
      block_product({.rows = part,
                     .columns = padded_columns(next - place),
                     .inner = channels_,
                     .a = block.rows + row * width_,
                     .a_row_stride = width_,
                     .a_inner_stride = 1,
                     .b = columns_ + panel * channels_ + place - panel,
                     .b_stride = panel_width(panel),
                     .c = room + row * wide + place - origin,
                     .c_stride = wide});
    }
  }
  return {room + block.place - origin + block.count - 1, wide - 1};
}

SlantedScores PositionTable::clear(const SlantedBlock& block, float* room) const {
  const int64_t wide = stride(block.others + block.count), lead = block.place % kColumnMultiple;
  for (int64_t row = 0; row < block.count; ++row) {
    const int64_t own = lead + block.count - 1 - row, past = own + block.others;
    float* products = room + row * wide;
    std::fill(products + std::max<int64_t>(0, own - kPart), products + own, 0.0f);
    std::fill(products + past, products + std::min(wide, past + kPart), 0.0f);
  }
  return {room + lead + block.count - 1, wide - 1};
}

void PositionTable::add_gradients(const SlantedBlock& block, const float* room,
                                  float* drows) const {
  const int64_t wide = stride(block.others + block.count), lead = block.place % kColumnMultiple;
  for (int64_t row = 0; row < block.count; row += kPart) {
    const int64_t part = std::min(kPart, block.count - row);
    const int64_t ahead = block.count - row - part;  // of the first place that a row has
    block_product({.rows = part,
                   .columns = width_,
                   .inner = part - 1 + block.others,
                   .a = room + row * wide + lead + ahead,
                   .a_row_stride = wide,
                   .a_inner_stride = 1,
                   .b = rows_ + (block.place + ahead) * width_,
                   .b_stride = width_,
                   .c = drows + row * width_,
                   .c_stride = width_,
                   .add = true});
  }
  const int64_t places = block.count + block.others - 1;
  for (int64_t place = 0; place < places; place += kPart) {
    const int64_t part = std::min(kPart, places - place);
    // The rows that have a score with one of them.
    const int64_t row = std::max<int64_t>(0, block.count - place - part);
    const int64_t end = std::min(block.count, block.count - 1 + block.others - place);
    block_product({.rows = part,
                   .columns = width_,
                   .inner = end - row,
                   .a = room + row * wide + lead + place,
                   .a_row_stride = 1,
                   .a_inner_stride = wide,
                   .b = block.rows + row * width_,
                   .b_stride = width_,
                   .c = gradients_ + (block.place + place) * gradient_stride_,
                   .c_stride = gradient_stride_,
                   .add = true});
  }
}

PositionProducts::PositionProducts(const AttentionArguments& a, const AttentionTask& task,
                                   AttentionScratch& scratch, const AttentionGradientViews& g,
                                   int64_t piece)
    : a_(a),
      task_(task),
      first_(a.position_span / 2 + 1 - task.queries() - a.key_lead),
      count_(task.queries() + task.keys() - 1),
      room_(scratch.take(std::max(PositionTable::room(task.max_rows(), task.block_keys()),
                                  PositionTable::room(task.block_keys(), task.max_rows())))),
      turned_(scratch.take(task.max_rows() * padded_columns(task.block_keys()))) {
  const int64_t head = task.query_head(0);
  if (a.key_positions.data != nullptr) {
    as_keys_.emplace(a.type, a.channels,
                     PositionTable::Source{a.key_positions, head, first_, count_, 1, 1.0f,
                                           gradient_of(g.dkey_positions, piece, first_)},
                     scratch);
  }
  if (a.query_positions.data != nullptr) {
    const int64_t last = first_ + count_ - 1;
    // Keys count from themselves to the query. Unlike queries they are not scaled yet.
    as_queries_.emplace(a.type, a.channels,
                        PositionTable::Source{a.query_positions, head, last, count_, -1, a.scale,
                                              gradient_of(g.dquery_positions, piece, last)},
                        scratch);
  }
}

SlantedBlock PositionProducts::of_queries(const QueryBlock& block, const float* queries,
                                          int64_t keys, int64_t key) const {
  return {queries, block.rows, keys, key - block.begin - block.rows + task_.queries()};
}

SlantedBlock PositionProducts::of_keys(const QueryBlock& block, const float* keys, int64_t count,
                                       int64_t key) const {
  return {keys + key * task_.width(), count, block.rows, task_.keys() - key - count + block.begin};
}

void PositionProducts::add_scores(const QueryBlock& block, const float* queries, const float* keys,
                                  int64_t key, int64_t count, const ScoreBlock& scores) {
  if (as_keys_) {
    const SlantedScores found = as_keys_->multiply(of_queries(block, queries, count, key), room_);
    for (int64_t r = 0; r < block.rows; ++r) {
      add_row(found.first + r * found.stride, scores.scores + r * scores.stride, scores.visible[r]);
    }
  }
  if (as_queries_) {
    const SlantedScores found = as_queries_->multiply(of_keys(block, keys, count, key), room_);
    const int64_t stride = padded_columns(count);
    transpose_block(found.first, found.stride, count, block.rows, turned_, stride);
    for (int64_t r = 0; r < block.rows; ++r) {
      add_row(turned_ + r * stride, scores.scores + r * scores.stride, scores.visible[r]);
    }
  }
}

float* PositionProducts::gradient_of(float* all, int64_t piece, int64_t vector) const {
  if (all == nullptr) return nullptr;
  const int64_t of_head = piece * a_.q.heads + task_.query_head(0);
  return all + (of_head * a_.position_span + vector) * task_.width();
}

void PositionProducts::add_gradients(const QueryBlock& block, const float* queries,
                                     const float* keys, int64_t key, int64_t count,
                                     const ScoreBlock& gradients, float* dq, float* dk) {
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = gradients.scores + r * gradients.stride;
    std::fill(row + gradients.visible[r], row + count, 0.0f);
  }
  if (as_keys_) {
    const SlantedBlock slanted = of_queries(block, queries, count, key);
    const SlantedScores to = as_keys_->clear(slanted, room_);
    for (int64_t r = 0; r < block.rows; ++r) {
      std::copy_n(gradients.scores + r * gradients.stride, count, to.first + r * to.stride);
    }
    as_keys_->add_gradients(slanted, room_, dq);
  }
  if (as_queries_) {
    const SlantedBlock slanted = of_keys(block, keys, count, key);
    const SlantedScores to = as_queries_->clear(slanted, room_);
    transpose_block(gradients.scores, gradients.stride, block.rows, count, to.first, to.stride);
    as_queries_->add_gradients(slanted, room_, dk + key * task_.width());
  }
}

}  // namespace strata::ops::cpu
