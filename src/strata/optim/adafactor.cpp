#include "strata/optim/adafactor.h"

#include <cmath>

#include <ATen/ATen.h>

#include "strata/optim/adamw.h"
#include "strata/shard/segments.h"

namespace strata::optim {
namespace {

// The matrices of a tensor, one below the other: a tensor of more than two dims is several.
struct Matrices {
  int64_t count, rows, columns;
  explicit Matrices(const nn::Parameter& parameter)
      : rows(parameter.shape()[parameter.shape().size() - 2]), columns(parameter.shape().back()) {
    count = rows * columns == 0 ? 0 : parameter.numel() / (rows * columns);
  }
  int64_t all_rows() const { return count * rows; }
  int64_t all_columns() const { return count * columns; }
};

// Whole rows that a piece of a matrix touches.
struct Rows {
  int64_t first, count;
  int64_t before;  // elements of the first row that lie before the piece
};

Rows rows_of(const shard::Piece& piece, int64_t columns) {
  const int64_t first = piece.tensor_begin / columns;
  const int64_t end = (piece.tensor_begin + piece.length + columns - 1) / columns;
  return {first, end - first, piece.tensor_begin - first * columns};
}

// The piece in a matrix of whole rows, zeros around it.
at::Tensor as_rows(const at::Tensor& piece, const Rows& rows, int64_t columns) {
  at::Tensor matrix = at::zeros({rows.count * columns}, piece.options());
  matrix.narrow(0, rows.before, piece.numel()).copy_(piece);
  return matrix.view({rows.count, columns});
}

// Which matrix each of these rows is of; int64 [rows.count].
at::Tensor matrix_of_rows(const Rows& rows, int64_t rows_of_each, const at::Tensor& like) {
  return at::arange(rows.first, rows.first + rows.count, like.options().dtype(at::kLong))
      .div_(rows_of_each, "floor");
}

// Rank r of n keeps elements [r * size / n, (r + 1) * size / n).
int64_t part_begin(int64_t size, int rank, int ranks) { return size * rank / ranks; }

}  // namespace

Adafactor::Adafactor(shard::UnitStore& store, const AdafactorOptions& options)
    : store_(store), options_(options), walk_(walk_of_parameters(store, options.sub_group_size)) {
  for (const auto& [unit, segment, layout] : shard::trained_segments_of(store)) {
    for (const shard::Extent& extent : layout->extents) {
      add_tensor(unit, segment, *extent.parameter);
    }
  }
}

void Adafactor::add_tensor(int unit, int segment, nn::Parameter& parameter) {
  const comm::Group& group = *store_.mesh().shard;
  Tensor tensor{&parameter,
                unit,
                segment,
                options_.decays_all || is_decayed(parameter.name()),
                parameter.shape().size() >= 2,
                {&parameter, 0, 0, 0},
                {},
                {},
                {}};
  for (const shard::Piece& piece :
       shard::pieces_of(store_.unit(unit).segments[static_cast<size_t>(segment)], group.rank())) {
    if (piece.parameter == &parameter) tensor.piece = piece;
  }
  if (tensor.is_factored) {
    const auto part = [&](int64_t size, int64_t& begin) {
      begin = part_begin(size, group.rank(), group.size());
      return at::zeros({part_begin(size, group.rank() + 1, group.size()) - begin}, on_device());
    };
    const Matrices matrices(parameter);
    tensor.rows = part(matrices.all_rows(), tensor.rows_begin);
    tensor.columns = part(matrices.all_columns(), tensor.columns_begin);
    tensor.sums_begin = num_sums_;
    num_sums_ += matrices.all_rows() + matrices.all_columns();
  } else {
    tensor.elements = at::zeros({tensor.piece.length}, on_device());
  }
  tensors_.push_back(std::move(tensor));
}

at::TensorOptions Adafactor::on_device() const {
  return at::TensorOptions().device(store_.home_device());
}

at::Tensor Adafactor::piece_of(const Tensor& tensor, const at::Tensor& flat) const {
  return flat.narrow(0, tensor.piece.shard_begin, tensor.piece.length);
}

at::Tensor Adafactor::scaled_gradient(const Tensor& tensor, double scale) const {
  return piece_of(tensor, store_.home(tensor.unit, tensor.segment).gradient) * scale;
}

at::Tensor Adafactor::update_of(Tensor& tensor, const at::Tensor& gradient, const at::Tensor& sums,
                                double beta) const {
  if (!tensor.is_factored) {
    tensor.elements.mul_(beta).add_(gradient.square() + options_.eps, 1 - beta);
    return gradient * tensor.elements.rsqrt();
  }
  const Matrices matrices(*tensor.parameter);
  const at::Tensor row_means = sums.narrow(0, tensor.sums_begin, matrices.all_rows());
  const at::Tensor column_means =
      sums.narrow(0, tensor.sums_begin + matrices.all_rows(), matrices.all_columns());
  tensor.rows.copy_(row_means.narrow(0, tensor.rows_begin, tensor.rows.numel()));
  tensor.columns.copy_(column_means.narrow(0, tensor.columns_begin, tensor.columns.numel()));
  if (tensor.piece.length == 0) return gradient;
  const Rows rows = rows_of(tensor.piece, matrices.columns);
  const at::Tensor update = as_rows(gradient, rows, matrices.columns);
  if (matrices.count == 1) {
    update
        .mul_((row_means.narrow(0, rows.first, rows.count) / row_means.mean()).rsqrt().unsqueeze(1))
        .mul_(column_means.rsqrt());
  } else {
    const at::Tensor by_matrix = row_means.view({matrices.count, matrices.rows});
    const at::Tensor of_matrix = matrix_of_rows(rows, matrices.rows, update);
    const at::Tensor factors = (by_matrix / by_matrix.mean(1, /*keepdim=*/true)).rsqrt();
    update.mul_(factors.view({-1}).narrow(0, rows.first, rows.count).unsqueeze(1))
        .mul_(column_means.view({matrices.count, matrices.columns})
                  .rsqrt()
                  .index_select(0, of_matrix));
  }
  return update.view({-1}).narrow(0, rows.before, tensor.piece.length);
}

void Adafactor::step(double learning_rate, double gradient_scale) {
  ++num_steps_;
  const double beta = 1 - std::pow(static_cast<double>(num_steps_), options_.decay_rate);
  at::Tensor sums = at::zeros({num_sums_}, on_device());
  for (const Tensor& tensor : tensors_) {
    if (!tensor.is_factored) continue;
    const Matrices matrices(*tensor.parameter);
    const int64_t columns = matrices.columns;
    const at::Tensor row_sums = sums.narrow(0, tensor.sums_begin, matrices.all_rows());
    const at::Tensor column_sums =
        sums.narrow(0, tensor.sums_begin + matrices.all_rows(), matrices.all_columns());
    row_sums.narrow(0, tensor.rows_begin, tensor.rows.numel()).add_(tensor.rows, beta);
    column_sums.narrow(0, tensor.columns_begin, tensor.columns.numel()).add_(tensor.columns, beta);
    if (tensor.piece.length == 0) continue;
    const Rows rows = rows_of(tensor.piece, columns);
    const at::Tensor squares = as_rows(
        scaled_gradient(tensor, gradient_scale).square_().add_(options_.eps), rows, columns);
    row_sums.narrow(0, rows.first, rows.count)
        .add_(squares.sum(1), (1 - beta) / static_cast<double>(columns));
    const double share = (1 - beta) / static_cast<double>(matrices.rows);
    if (matrices.count == 1) {
      column_sums.add_(squares.sum(0), share);
    } else {
      column_sums.view({matrices.count, columns})
          .index_add_(0, matrix_of_rows(rows, matrices.rows, squares), squares, share);
    }
  }
  comm::sum_alike(store_.mesh(), sums);

  std::vector<at::Tensor> updates;
  at::Tensor square_sums =
      at::zeros({static_cast<int64_t>(tensors_.size())}, on_device().dtype(at::kDouble));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    updates.push_back(
        update_of(tensors_[i], scaled_gradient(tensors_[i], gradient_scale), sums, beta));
    square_sums[static_cast<int64_t>(i)] = updates.back().to(at::kDouble).square().sum();
  }
  comm::sum_alike(store_.mesh(), square_sums);
  if (square_sums.is_meta()) return;  // without data (the memory plan)
  square_sums = square_sums.cpu();    // waited for once
  std::vector<double> rates;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const double mean = square_sums[static_cast<int64_t>(i)].item<double>() /
                        static_cast<double>(tensors_[i].parameter->numel());
    rates.push_back(learning_rate / std::max(1.0, std::sqrt(mean) / options_.clip_threshold));
  }
  move(updates, rates, /*decay=*/1 - options_.weight_decay * learning_rate);
}

void Adafactor::move(const std::vector<at::Tensor>& updates, const std::vector<double>& rates,
                     double decay) {
  // `value`: elements of the tensor's piece from `first` on.
  const auto move_part = [&](size_t i, at::Tensor value, int64_t first) {
    if (tensors_[i].decayed) value.mul_(decay);
    value.sub_(updates[i].narrow(0, first, value.numel()), rates[i]);
  };
  if (!walk_) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& tensor = tensors_[i];
      move_part(i, piece_of(tensor, store_.home(tensor.unit, tensor.segment).value), 0);
    }
    return;
  }
  // What loading, saving or evaluating looked at need not stay in memory.
  store_.file()->forget_pages();
  walk_->run([&](const SubGroup& group, std::span<const at::Tensor> values) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& tensor = tensors_[i];
      if (tensor.unit != group.unit || tensor.segment != group.segment) continue;
      const auto [begin, length] = overlap_of(group, tensor.piece.shard_begin, tensor.piece.length);
      if (length <= 0) continue;
      move_part(i, values[0].narrow(0, begin - group.begin, length),
                begin - tensor.piece.shard_begin);
    }
  });
}

void Adafactor::rehearse() {
  if (walk_) walk_->run([](const SubGroup&, std::span<const at::Tensor>) {});
}

std::vector<StateTensor> Adafactor::state() {
  std::vector<StateTensor> list;
  const auto add = [&](const char* name, const Tensor& tensor, std::vector<int64_t> shape,
                       int64_t begin, const at::Tensor& data) {
    if (data.numel() > 0) list.push_back({name, tensor.parameter, std::move(shape), begin, data});
  };
  for (const Tensor& tensor : tensors_) {
    const auto& shape = tensor.parameter->shape();
    if (tensor.is_factored) {
      std::vector<int64_t> of_rows(shape.begin(), shape.end() - 1);
      std::vector<int64_t> of_columns(shape.begin(), shape.end() - 2);
      of_columns.push_back(shape.back());
      add("exp_avg_sq_row", tensor, of_rows, tensor.rows_begin, tensor.rows);
      add("exp_avg_sq_col", tensor, of_columns, tensor.columns_begin, tensor.columns);
    } else {
      add("exp_avg_sq", tensor, shape, tensor.piece.tensor_begin, tensor.elements);
    }
  }
  return list;
}

}  // namespace strata::optim
