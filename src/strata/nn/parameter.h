// A named weight as the layers see it: a value that exists only while its unit is gathered, and a
// place where its gradient goes. Owns: the invariants I1 and I2 of the design. Never: memory;
// shard/ owns the buffers that the attached tensors view, and never lets a parameter enter
// autograd.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/ops/quant/quantized.h"

namespace strata::nn {

// Where a weight gradient is written. beta 0: overwrite the buffer; beta 1: add to it.
struct GradTarget {
  at::Tensor tensor;
  float beta;
};

// Where there is a gradient (+)= a^T b, with a [tokens, rows], b [tokens, columns].
void write_grad_product(const GradTarget& target, const at::Tensor& a, const at::Tensor& b);

// A frozen matrix, or each matrix of several experts by itself, that is stored, communicated and
// gathered as codes.
struct Quantization {
  ops::quant::Format format;
  // The type in which products use the decoded weight; none: that of the activations, to which
  // MXFP4 and fp8 are decoded by way of the type of the run's weights.
  std::optional<at::ScalarType> compute;
  // 8 bits, outside training: activations of this magnitude are not quantised; 0: all are.
  double threshold = 6.0;
};

// Invariants: value() only between attach_value() and detach_value(); grad() only between
// attach_grad() and detach_grad(). Breaking one is an InternalError in every build.
// Threads: one thread at a time (autograd's backward runs on the calling thread for CPU tensors;
// on accelerators the executor drives one block at a time).
class Parameter {
 public:
  // `name`: the weight's name in the checkpoint file, such as "model.norm.weight".
  // `storage`: element type at rest; the gathered value may have another (the compute type).
  Parameter(std::string name, std::vector<int64_t> shape, at::ScalarType storage);
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t numel() const { return numel_; }
  at::ScalarType storage_type() const { return storage_; }
  // Not for a quantised parameter; one that must keep its type keeps it.
  void set_storage_type(at::ScalarType type) { storage_ = keeps_type_ ? storage_ : type; }
  // The type it would have at rest without quantisation.
  at::ScalarType plain_storage_type() const { return quantization_ ? plain_storage_ : storage_; }
  // Elements of storage_type() at rest: numel(), or bytes of a quantised matrix.
  int64_t stored_numel() const { return stored_numel_; }
  // Rows at its end that no file of the base holds, because the vocabulary grew; below 0: rows of
  // the file that are not used.
  int64_t num_new_rows() const { return num_new_rows_; }
  void set_num_new_rows(int64_t count) { num_new_rows_ = count; }
  // What a file of the base holds: shape() without those rows.
  std::vector<int64_t> shape_in_base() const;
  // Makes storage_type() bytes. Requires: a matrix, or matrices [experts, rows, columns] in MXFP4
  // or a format of bitsandbytes; before memory is given out.
  void set_quantization(const Quantization& quantization);
  const std::optional<Quantization>& quantization() const { return quantization_; }
  // Whether it is the table of an embedding, for which 8-bit optimizers keep 32 bits. A tied output
  // layer has it by being the same parameter.
  bool is_embedding_table() const { return is_embedding_table_; }
  void set_embedding_table() { is_embedding_table_ = true; }
  // Whether it is a linear layer's weight as [in, out] (GPT-2's Conv1D), not [out, in].
  bool is_transposed() const { return is_transposed_; }
  void set_transposed() { is_transposed_ = true; }
  // Whether its type at rest is also that in which it is gathered and written, whatever that of the
  // run: the reference's _keep_in_fp32_modules_strict, and buffers.
  bool keeps_type() const { return keeps_type_; }
  void set_keeps_type() { keeps_type_ = true; }
  // Whether it is a buffer of the reference that files hold: it never trains, keeps its type, and
  // is none of the parameters that are counted.
  bool is_buffer() const { return is_buffer_; }
  void set_buffer() {
    is_buffer_ = keeps_type_ = true;
    requires_grad_ = false;
  }
  bool requires_grad() const { return requires_grad_; }
  void set_requires_grad(bool value) { requires_grad_ = value && !is_buffer_; }

  // The whole tensor, of shape(), in the compute type. InternalError for a quantised one.
  const at::Tensor& value() const;
  // The codes of a quantised matrix; of several that of one expert, in MXFP4 transposed.
  ops::quant::QuantizedMatrix quantized_value(int64_t expert = 0) const;
  // The matrix of an expert in MXFP4 into `out` [rows, columns].
  void decode_matrix_into(const at::Tensor& out, int64_t expert) const;
  // All bytes of a quantised one, as they are gathered.
  const at::Tensor& quantized_bytes() const;
  // The whole tensor in `type`, decoded where it is quantised.
  at::Tensor dense_value(at::ScalarType type) const;
  // What bytes of a quantised one stand for, in `type`, of shape().
  at::Tensor decoded(const at::Tensor& bytes, at::ScalarType type) const;
  // The bytes that stand for `values`, fp32 of shape() on the CPU, in a format of bitsandbytes.
  at::Tensor encoded(const at::Tensor& values) const;
  // Matrices that are quantised each by itself, [matrix_rows(), matrix_columns()], whose bytes lie
  // matrix_bytes() from each other. Requires: quantised.
  int64_t num_matrices() const { return shape_.size() == 3 ? shape_[0] : 1; }
  int64_t matrix_rows() const { return shape_[shape_.size() - 2]; }
  int64_t matrix_columns() const { return shape_.back(); }
  int64_t matrix_bytes() const { return stored_numel_ / num_matrices(); }
  bool is_gathered() const { return value_.defined(); }

  // Where to write this use's gradient (shape()). The first call after attach_grad(overwrite=true)
  // answers beta 0, later ones 1: every use must call it exactly once and write the whole tensor.
  GradTarget grad();
  // Convenience for gradients that are at hand as a tensor: copies or adds.
  void accumulate_grad(const at::Tensor& gradient);
  // Convenience for linear layers.
  void accumulate_grad_product(const at::Tensor& a, const at::Tensor& b);

  // The following is for shard/ only.
  void attach_value(at::Tensor value);
  void detach_value() { value_ = at::Tensor(); }
  void attach_grad(at::Tensor gradient, bool overwrite);
  // Returns whether any use wrote the gradient since attach_grad (else its content is undefined
  // when attached with overwrite).
  bool detach_grad();

 private:
  std::string name_;
  std::vector<int64_t> shape_;
  int64_t numel_;
  int64_t stored_numel_;
  int64_t num_new_rows_ = 0;
  at::ScalarType storage_;
  std::optional<Quantization> quantization_;
  at::ScalarType plain_storage_;  // storage_ without quantisation
  bool requires_grad_ = true;
  bool is_embedding_table_ = false;
  bool is_transposed_ = false;
  bool keeps_type_ = false;
  bool is_buffer_ = false;
  const at::Tensor& gathered() const;
  bool is_in_mxfp4() const;
  ops::quant::QuantizedMatrix matrix_of(const at::Tensor& bytes, int64_t expert) const;
  void decode_matrix(const at::Tensor& bytes, int64_t expert, const at::Tensor& out) const;

  at::Tensor value_;  // shape(), or the flat codes
  at::Tensor grad_;
  bool overwrite_ = false;
  bool written_ = false;
};

}  // namespace strata::nn
