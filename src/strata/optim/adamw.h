// AdamW over the flat shards of a UnitStore, with global gradient clipping folded into the update.
// Owns: the moments. Never: parameters or gradients; those rest in their homes.
#pragma once

#include <memory>
#include <vector>

#include "strata/optim/optimizer.h"
#include "strata/optim/sub_group_walk.h"
#include "strata/shard/unit_store.h"

namespace strata::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decays_all = false;                  // norms and biases, too
  shard::FileHomeOptions state_files = {};  // on: the moments rest in a file (NVMe offload)
  int64_t sub_group_size = 16777216;  // elements updated at once where something rests in a file
};

// Whether the reference's Trainer decays a weight of this name: all but biases and norms.
// Source: transformers Trainer.get_decay_parameter_names.
bool is_decayed(const std::string& parameter_name);

// L2 norm of the gradient of the whole model. Collective over the shard group; the same value on
// every rank. A non-finite gradient gives a non-finite norm.
double global_gradient_norm(shard::UnitStore& store);

// The factor that clipping multiplies gradients by: min(1, max_norm / (norm + 1e-6)); 1 when
// max_norm is 0.
double clip_factor(double norm, double max_norm);

// What the moments of one rank take up in a file.
uint64_t state_file_bytes(const shard::Partition& partition);

class AdamW final : public Optimizer {
 public:
  AdamW(shard::UnitStore& store, const AdamWOptions& options);

  void step(double learning_rate, double gradient_scale) override;
  // "exp_avg" and "exp_avg_sq" of every trained weight, fp32.
  std::vector<StateTensor> state() override;

  void rehearse() override;

  // The moments of one trained segment, fp32 [shard_numel] each; views where they rest in a file.
  struct Moments {
    at::Tensor exp_avg, exp_avg_sq;
    shard::FileRegion exp_avg_region, exp_avg_sq_region;
  };
  Moments& moments(int unit, int segment);

 private:
  // Neighbouring pieces of a shard that decay alike, updated in one pass.
  struct Run {
    int unit;
    int segment;
    int64_t begin;
    int64_t length;
    bool decayed;
  };

  void allocate_moments();
  void collect_runs();
  std::vector<SubGroup> sub_groups();
  // The part of a run that lies in the group.
  void update(const Run& run, const SubGroup& group, std::span<const at::Tensor> parts,
              double learning_rate, double gradient_scale);

  shard::UnitStore& store_;
  AdamWOptions options_;
  std::unique_ptr<shard::HomeFile> file_;      // of the moments
  std::vector<std::vector<Moments>> moments_;  // [unit][segment]
  std::vector<Run> runs_;
  std::unique_ptr<SubGroupWalk> walk_;  // null: everything is stored in memory
};

}  // namespace strata::optim
