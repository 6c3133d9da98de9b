#include "strata/nn/parameter.h"

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/matmul/matmul.h"
#include "strata/ops/quant/mxfp4.h"

namespace strata::nn {

Parameter::Parameter(std::string name, std::vector<int64_t> shape, at::ScalarType storage)
    : name_(std::move(name)),
      shape_(std::move(shape)),
      numel_(1),
      storage_(storage),
      plain_storage_(storage) {
  for (int64_t size : shape_) numel_ *= size;
  stored_numel_ = numel_;
}

std::vector<int64_t> Parameter::shape_in_base() const {
  std::vector<int64_t> shape = shape_;
  if (num_new_rows_ != 0) shape[0] -= num_new_rows_;
  return shape;
}

bool Parameter::is_in_mxfp4() const {
  return quantization_.value().format == ops::quant::kMxfp4Format;
}

void Parameter::set_quantization(const Quantization& quantization) {
  const ops::quant::Format& format = quantization.format;
  const bool in_mxfp4 = format == ops::quant::kMxfp4Format;
  const bool of_experts = shape_.size() == 3;
  const bool is_possible = in_mxfp4     ? of_experts && shape_[1] % ops::quant::kMxfp4Block == 0
                           : of_experts ? ops::quant::is_of_bitsandbytes(format)
                                        : shape_.size() == 2;
  if (!is_possible || requires_grad_ || is_transposed_) {
    throw InternalError("parameter \"{}\": found it quantised as {}, expected a frozen matrix [{}]",
                        name_, ops::quant::describe(format),
                        in_mxfp4 ? "experts, in, out" : "out, in");
  }
  quantization_ = quantization;
  plain_storage_ = storage_;
  storage_ = at::kByte;
  keeps_type_ = false;  // codes of the weights that keep theirs are codes as all others
  stored_numel_ = in_mxfp4 ? ops::quant::stored_bytes(format, shape_[2], shape_[1])
                           : ops::quant::stored_bytes(format, matrix_rows(), matrix_columns());
  if (!of_experts) return;
  constexpr int64_t kVector = 16;  // each expert's begin where vectors may
  stored_numel_ = shape_[0] * ((stored_numel_ + kVector - 1) / kVector * kVector);
}

const at::Tensor& Parameter::value() const {
  if (quantization_.has_value()) {
    throw InternalError(
        "parameter \"{}\": found its value read, expected quantized_value() of a quantised weight; "
        "report this as a bug",
        name_);
  }
  return gathered();
}

ops::quant::QuantizedMatrix Parameter::quantized_value(int64_t expert) const {
  return matrix_of(gathered(), expert);
}

ops::quant::QuantizedMatrix Parameter::matrix_of(const at::Tensor& bytes, int64_t expert) const {
  const ops::quant::Format& format = quantization_.value().format;
  int64_t rows = matrix_rows(), columns = matrix_columns();
  if (is_in_mxfp4()) std::swap(rows, columns);
  if (shape_.size() == 2) return {format, rows, columns, bytes, plain_storage_};
  const int64_t own_bytes = ops::quant::stored_bytes(format, rows, columns);
  return {format, rows, columns, bytes.narrow(0, expert * matrix_bytes(), own_bytes),
          plain_storage_};
}

const at::Tensor& Parameter::quantized_bytes() const {
  (void)quantization_.value();
  return gathered();
}

at::Tensor Parameter::dense_value(at::ScalarType type) const {
  return quantization_ ? decoded(gathered(), type) : value().to(type);
}

at::Tensor Parameter::decoded(const at::Tensor& bytes, at::ScalarType type) const {
  if (shape_.size() == 2) return ops::quant::dequantize(matrix_of(bytes, 0), type);
  const bool is_direct = type != at::kHalf || is_for_cuda(bytes) || !is_in_mxfp4();
  const at::Tensor all = at::empty(shape_, bytes.options().dtype(is_direct ? type : at::kFloat));
  for (int64_t e = 0; e < shape_[0]; ++e) decode_matrix(bytes, e, all.select(0, e));
  return all.to(type);
}

at::Tensor Parameter::encoded(const at::Tensor& values) const {
  const ops::quant::Format& format = quantization_.value().format;
  const at::Tensor dense = values.contiguous();
  if (shape_.size() == 2) return ops::quant::quantize(dense, format).bytes;
  const at::Tensor all = at::zeros({stored_numel_}, dense.options().dtype(at::kByte));
  for (int64_t e = 0; e < shape_[0]; ++e) {
    const at::Tensor bytes = ops::quant::quantize(dense.select(0, e), format).bytes;
    all.narrow(0, e * matrix_bytes(), bytes.numel()).copy_(bytes);
  }
  return all;
}

void Parameter::decode_matrix_into(const at::Tensor& out, int64_t expert) const {
  decode_matrix(quantized_bytes(), expert, out);
}

void Parameter::decode_matrix(const at::Tensor& bytes, int64_t expert,
                              const at::Tensor& out) const {
  const ops::quant::QuantizedMatrix matrix = matrix_of(bytes, expert);
  if (is_in_mxfp4()) {
    ops::quant::decode_mxfp4_into(out, matrix, /*through_half=*/plain_storage_ == at::kHalf);
  } else {
    out.copy_(ops::quant::dequantize(matrix, out.scalar_type()));
  }
}

const at::Tensor& Parameter::gathered() const {
  if (!value_.defined()) {
    throw InternalError(
        "parameter \"{}\": found it read while its unit is not gathered, "
        "expected a gather before each use; report this as a bug",
        name_);
  }
  return value_;
}

GradTarget Parameter::grad() {
  if (!grad_.defined()) {
    throw InternalError(
        "parameter \"{}\": found a gradient without a buffer, expected one "
        "attached before backward; report this as a bug",
        name_);
  }
  const bool first = overwrite_ && !written_;
  written_ = true;
  return {grad_, first ? 0.0f : 1.0f};
}

void Parameter::accumulate_grad(const at::Tensor& gradient) {
  GradTarget target = grad();
  if (target.beta == 0.0f) {
    target.tensor.copy_(gradient);
  } else {
    target.tensor.add_(gradient);
  }
}

void write_grad_product(const GradTarget& target, const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType type = target.tensor.scalar_type();
  if (type == a.scalar_type() || type == at::kFloat) {
    ops::matmul_into(target.tensor, a, b, {.a = true}, target.beta);
  } else {
    const at::Tensor product = ops::matmul(a, b, {.a = true});
    target.beta == 0.0f ? target.tensor.copy_(product) : target.tensor.add_(product);
  }
}

void Parameter::accumulate_grad_product(const at::Tensor& a, const at::Tensor& b) {
  write_grad_product(grad(), a, b);
}

void Parameter::attach_value(at::Tensor value) {
  if (value.numel() != stored_numel_) {
    throw InternalError(
        "parameter \"{}\": found {} elements gathered, expected {}; report this as "
        "a bug",
        name_, value.numel(), stored_numel_);
  }
  const bool is_shaped = quantization_ || value.sizes() == at::IntArrayRef(shape_);
  value_ = is_shaped ? std::move(value) : value.view(shape_);
}

void Parameter::attach_grad(at::Tensor gradient, bool overwrite) {
  const bool is_shaped = gradient.sizes() == at::IntArrayRef(shape_);
  grad_ = is_shaped ? std::move(gradient) : gradient.view(shape_);
  overwrite_ = overwrite;
  written_ = false;
}

bool Parameter::detach_grad() {
  grad_ = at::Tensor();
  return written_;
}

}  // namespace strata::nn
