#include "strata/ops/quant/range_quantizer.h"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/ParallelGuard.h>

#include "strata/ops/quant/kernels.h"

namespace strata::ops::quant {
namespace {

// Elements of a range, for each thread: of bf16 they and their codes fit a second cache of 1 MiB.
constexpr int64_t kAtOnce = 1 << 18;
// Elements of other types that are converted at once: a multiple of every block size, and near
// enough to the processor that the conversion is not paid for in memory traffic.
constexpr int64_t kChunk = 1 << 16;

// The element types that the kernels read as they are.
std::optional<Element> kernel_type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return Element::kFloat;
    case at::kBFloat16:
      return Element::kBFloat16;
    case at::kHalf:
      return Element::kHalf;
    default:
      return {};
  }
}

// `use`(begin, count, values) over x: all at once, or what kernels cannot read in ranges of `chunk`
// elements that become `type` (fp32 or fp16).
template <typename Use>
void for_ranges(const at::Tensor& flat, int64_t chunk, at::ScalarType type, const Use& use) {
  if (const auto element = kernel_type_of(flat)) {
    return use(0, flat.numel(), cpu::Values{*element, flat.const_data_ptr()});
  }
  for (int64_t begin = 0; begin < flat.numel(); begin += chunk) {
    const int64_t count = std::min(chunk, flat.numel() - begin);
    const at::Tensor x = flat.narrow(0, begin, count).to(type);
    use(begin, count, cpu::Values{*kernel_type_of(x), x.const_data_ptr()});
  }
}

// The mean is a sum that libtorch splits over its threads; on one it depends on nothing.
at::Tensor mean_on_one_thread(const at::Tensor& x) {
  const c10::ParallelGuard serial(true);
  return x.mean();
}

}  // namespace

RangeQuantizer::RangeQuantizer(const Format& format, int64_t rows, int64_t columns,
                               const at::Tensor& bytes)
    : format_(format), columns_(columns), layout_(layout_of(format, rows, columns)) {
  const int64_t length = layout_.total - layout_.scales;
  rest_ = bytes.defined() ? bytes.narrow(0, layout_.scales, length)
                          : at::empty({length}, at::TensorOptions().dtype(at::kByte));
  // The bytes between parts must not differ between runs.
  if (bytes.defined()) {
    bytes.narrow(0, layout_.num_codes, layout_.scales - layout_.num_codes).zero_();
  }
  if (format_.nested) {
    const int64_t end_of_scales = layout_.scales + layout_.num_scales;
    part(end_of_scales, layout_.nested - end_of_scales, at::kByte).zero_();
  }
  first_ = format_.nested ? at::empty({layout_.num_scales}) : scales();
}

int64_t RangeQuantizer::at_once(const Format& format, int64_t columns) {
  const int64_t elements = kAtOnce * at::get_num_threads();
  if (format.kind != Kind::kInt8) return elements;
  return std::max<int64_t>(1, elements / std::max<int64_t>(1, columns)) * columns;
}

int64_t RangeQuantizer::code_offset(int64_t element) const {
  return format_.kind == Kind::kInt8 ? element : element / 2;
}

void RangeQuantizer::quantize(const at::Tensor& x, int64_t begin, uint8_t* codes) {
  if (x.numel() == 0) return;
  auto* scales = first_.mutable_data_ptr<float>();
  if (format_.kind == Kind::kInt8) {
    quantize_int8(x, codes, scales + begin / columns_);
  } else {
    quantize_4bit(x, codes, scales + begin / format_.block);
  }
}

void RangeQuantizer::quantize_4bit(const at::Tensor& x, uint8_t* codes, float* scales) const {
  for_ranges(x, kChunk, at::kFloat, [&](int64_t begin, int64_t count, cpu::Values values) {
    cpu::quantize_4bit(format_.kind, format_.block, values, count, codes + begin / 2,
                       scales + begin / format_.block);
  });
}

void RangeQuantizer::quantize_int8(const at::Tensor& x, uint8_t* codes, float* scales) const {
  const int64_t chunk = std::max<int64_t>(1, kChunk / columns_) * columns_;
  for_ranges(x, chunk, at::kHalf, [&](int64_t begin, int64_t count, cpu::Values values) {
    cpu::quantize_rows(values, count / columns_, columns_, reinterpret_cast<int8_t*>(codes) + begin,
                       scales + begin / columns_);
  });
}

void RangeQuantizer::finish() {
  if (!format_.nested) return;
  const at::Tensor mean_of_scales = mean_on_one_thread(first_);
  mean().copy_(mean_of_scales);
  const at::Tensor rest = first_ - mean_of_scales;
  cpu::quantize_dynamic(/*is_signed=*/true, cpu::Rounding::kTable, kNestedBlock,
                        rest.const_data_ptr<float>(), rest.numel(),
                        scales().mutable_data_ptr<uint8_t>(), nested().mutable_data_ptr<float>());
}

at::Tensor RangeQuantizer::part(int64_t offset, int64_t bytes, at::ScalarType type) const {
  return rest_.narrow(0, offset - layout_.scales, bytes).view(type);
}

at::Tensor RangeQuantizer::scales() const {
  if (format_.nested) return part(layout_.scales, layout_.num_scales, at::kByte);
  return part(layout_.scales, 4 * layout_.num_scales, at::kFloat);
}

at::Tensor RangeQuantizer::nested() const {
  return part(layout_.nested, 4 * layout_.num_nested, at::kFloat);
}

at::Tensor RangeQuantizer::mean() const {
  return part(layout_.mean, format_.nested ? 4 : 0, at::kFloat);
}

}  // namespace strata::ops::quant
