#include "strata/nn/parameter.h"

#include "strata/base/error.h"
#include "strata/ops/matmul.h"

namespace strata::nn {

Parameter::Parameter(std::string name, std::vector<int64_t> shape, at::ScalarType storage)
    : name_(std::move(name)), shape_(std::move(shape)), numel_(1), storage_(storage) {
  for (int64_t size : shape_) numel_ *= size;
  stored_numel_ = numel_;
}

std::vector<int64_t> Parameter::shape_in_base() const {
  std::vector<int64_t> shape = shape_;
  if (num_new_rows_ != 0) shape[0] -= num_new_rows_;
  return shape;
}

void Parameter::set_quantization(const Quantization& quantization) {
  if (shape_.size() != 2 || requires_grad_ || is_transposed_) {
    throw InternalError("parameter \"{}\": found it quantised, expected a frozen matrix [out, in]",
                        name_);
  }
  quantization_ = quantization;
  storage_ = at::kByte;
  stored_numel_ = ops::quant::stored_bytes(quantization.format, shape_[0], shape_[1]);
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

ops::quant::QuantizedMatrix Parameter::quantized_value() const {
  return {quantization_.value().format, shape_[0], shape_[1], gathered()};
}

at::Tensor Parameter::dense_value(at::ScalarType type) const {
  return quantization_ ? ops::quant::dequantize(quantized_value(), type) : value().to(type);
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
  value_ = quantization_ ? value : value.view(shape_);
}

void Parameter::attach_grad(at::Tensor gradient, bool overwrite) {
  grad_ = gradient.view(shape_);
  overwrite_ = overwrite;
  written_ = false;
}

bool Parameter::detach_grad() {
  grad_ = at::Tensor();
  return written_;
}

}  // namespace strata::nn
