// Adafactor (Shazeer and Stern 2018) as Trainer configures it: a given learning rate, no first
// moment, no scaling by the parameter. Owns: the factored second moments. Never: parameters or
// gradients.
//
// A matrix keeps the running means of its squared gradient over rows and over columns, a tensor of
// more dims those of each matrix of its last two, other tensors one value an element. Source:
// transformers optimization.Adafactor.
#pragma once

#include <memory>
#include <vector>

#include "strata/optim/optimizer.h"
#include "strata/optim/sub_group_walk.h"
#include "strata/shard/unit_store.h"

namespace strata::optim {

struct AdafactorOptions {
  double eps = 1e-30;           // added to squared gradients
  double clip_threshold = 1.0;  // largest root mean square of a tensor's update
  double decay_rate = -0.8;     // the mean forgets by 1 - step^decay_rate
  double weight_decay = 0;
  bool decays_all = false;            // norms and biases, too
  int64_t sub_group_size = 16777216;  // elements updated at once of parameters in files
};

// Means of rows and columns need the whole matrix: each rank adds what its piece gives and what it
// keeps of the state, and one sum over the shard group makes both whole.
// Collective: step(), two sums that are alike on all ranks (comm::sum_alike).
class Adafactor final : public Optimizer {
 public:
  Adafactor(shard::UnitStore& store, const AdafactorOptions& options);

  void step(double learning_rate, double gradient_scale) override;
  void rehearse() override;
  // "exp_avg_sq_row" and "exp_avg_sq_col" of matrices, "exp_avg_sq" of others, fp32.
  std::vector<StateTensor> state() override;

 private:
  // A trained tensor, on every rank, with or without a piece here.
  struct Tensor {
    nn::Parameter* parameter;
    int unit, segment;
    bool decayed;
    bool is_factored;
    shard::Piece piece;  // length 0: none here
    // This rank's part of the row and column means, and where it begins; or the elements' own.
    at::Tensor rows, columns, elements;
    int64_t rows_begin = 0, columns_begin = 0;
    int64_t sums_begin = 0;  // of this tensor in the vector that is summed over ranks
  };

  void add_tensor(int unit, int segment, nn::Parameter& parameter);
  at::TensorOptions on_device() const;
  at::Tensor piece_of(const Tensor& tensor, const at::Tensor& flat) const;
  at::Tensor scaled_gradient(const Tensor& tensor, double scale) const;
  at::Tensor update_of(Tensor& tensor, const at::Tensor& gradient, const at::Tensor& sums,
                       double beta) const;
  // Each tensor by its update times its rate, after `decay` where it decays.
  void move(const std::vector<at::Tensor>& updates, const std::vector<double>& rates, double decay);

  shard::UnitStore& store_;
  AdafactorOptions options_;
  std::vector<Tensor> tensors_;
  int64_t num_sums_ = 0;
  std::unique_ptr<SubGroupWalk> walk_;  // null: parameters are stored in memory
};

}  // namespace strata::optim
