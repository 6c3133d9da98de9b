// An elementwise update rule over the flat shards of a UnitStore, with state in 32 or 8 bits.
// Owns: the state. Never: formulas (update_rules.h), parameters or gradients.
#pragma once

#include <memory>
#include <vector>

#include "strata/optim/optimizer.h"
#include "strata/optim/sub_group_walk.h"
#include "strata/optim/update_rules.h"
#include "strata/shard/unit_store.h"

namespace strata::optim {

struct RuleOptions {
  Rule rule = Rule::kAdamW;
  bool is_8bit = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decays_all = false;            // norms and biases, too
  SgdMomentum momentum = {};          // of kSgdMomentum
  int64_t sub_group_size = 16777216;  // elements updated at once of parameters in files
};

// Tensors with fewer elements keep 32-bit state, as in bitsandbytes.
inline constexpr int64_t kMin8bitElements = 4096;

// 8-bit state: uint8 codes and one fp32 scale per block of 256 elements of the tensor, under the
// names of bitsandbytes (state1, absmax1, ...). Pieces begin at block borders (shard/unit.h), so
// that state does not depend on the world size. Tables of embeddings keep 32-bit state, as the
// weight of every torch.nn.Embedding does under Trainer.
class RuleOptimizer final : public Optimizer {
 public:
  RuleOptimizer(shard::UnitStore& store, const RuleOptions& options);

  void step(double learning_rate, double gradient_scale) override;
  void rehearse() override;
  std::vector<StateTensor> state() override;

 private:
  // One tensor of state of one piece: `values` fp32, or `codes` with `scales`.
  struct Kept {
    at::Tensor values, codes, scales;
  };
  struct Part {
    int unit, segment;
    shard::Piece piece;
    bool decayed;
    bool is_8bit;
    std::vector<Kept> kept;  // in the order of state_of()
  };

  Part make_part(int unit, int segment, const shard::Piece& piece) const;
  // `values`: elements [first, first + n) of the piece. Requires: `first` at a block of state.
  void update(Part& part, const at::Tensor& values, int64_t first, const RuleStep& step);

  shard::UnitStore& store_;
  RuleOptions options_;
  std::vector<Part> parts_;
  std::unique_ptr<SubGroupWalk> walk_;  // null: parameters are stored in memory
};

}  // namespace strata::optim
