// The update rule behind a name of TrainingArguments' `optim`.
// Owns: the table of names. Never: formulas.
#pragma once

#include <memory>
#include <string>

#include "strata/optim/optimizer.h"
#include "strata/optim/update_rules.h"
#include "strata/shard/unit_store.h"

namespace strata::optim {

struct OptimizerSettings {
  std::string name = "adamw_torch_fused";
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decays_all = false;                  // norms and biases, too
  SgdMomentum momentum = {};                // of sgd
  shard::FileHomeOptions state_files = {};  // on: state is stored in a file; 32-bit AdamW alone
  int64_t sub_group_size = 16777216;        // elements updated at once where something is in files
};

// ConfigError for a name that is not in the table, or whose state cannot rest in files. Paged names
// are their plain ones: on a CPU all state is in pageable memory.
std::unique_ptr<Optimizer> make_optimizer(shard::UnitStore& store,
                                          const OptimizerSettings& settings);

}  // namespace strata::optim
