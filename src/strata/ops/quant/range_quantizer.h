// Quantises a matrix range by range, so that codes can go elsewhere while they are near the
// processor, and neither they nor the values need to be in memory as a whole. Owns: scales of both
// levels. Never: where codes rest.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/ops/quant/format.h"

namespace strata::ops::quant {

// The result is that of quantize(), bit for bit, whatever the ranges. Threads: one caller.
class RangeQuantizer {
 public:
  // `bytes`: uint8 [layout_of().total], whose part after the codes is filled here; without it that
  // part is memory of this object.
  RangeQuantizer(const Format& format, int64_t rows, int64_t columns, const at::Tensor& bytes = {});

  // Elements of a range that stays near the processors: whole rows and blocks.
  static int64_t at_once(const Format& format, int64_t columns);
  int64_t at_once() const { return at_once(format_, columns_); }
  // Where the code of an element lies, in bytes from the first one.
  int64_t code_offset(int64_t element) const;
  // The flattened elements [begin, begin + x.numel()) of the matrix, of any floating type.
  // Requires: `begin` is a multiple of at_once(), and so is the number unless they are the last.
  void quantize(const at::Tensor& x, int64_t begin, uint8_t* codes);
  // After the last range: now scales() and what follows are those of the matrix.
  void finish();

  // The scales as QuantizedMatrix has them.
  at::Tensor scales() const;
  at::Tensor nested() const;
  at::Tensor mean() const;

 private:
  at::Tensor part(int64_t offset, int64_t bytes, at::ScalarType type) const;
  void quantize_4bit(const at::Tensor& x, uint8_t* codes, float* scales) const;
  void quantize_int8(const at::Tensor& x, uint8_t* codes, float* scales) const;

  Format format_;
  int64_t columns_;
  Layout layout_;
  at::Tensor rest_;   // uint8, from layout_.scales on
  at::Tensor first_;  // the scales as fp32: scales() where they are not nested
};

}  // namespace strata::ops::quant
