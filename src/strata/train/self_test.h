// The self test on a person's own settings: the rows of a step, laid out over ranks, micro-batches
// and recomputation in ways that must not matter. Owns: which ways, and the judgement. Never:
// starts processes, prints.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/config/run_config.h"

namespace strata::train {

// One way to compute the same steps. Of all layouts of a test rows_per_step() is the same.
struct Layout {
  std::string name;
  int world_size = 1;
  int64_t batch_size = 1;  // per_device_train_batch_size
  int64_t accumulation = 1;
  bool checkpointing = false;
  int sharers = 1;  // ranks that have the same rows

  int64_t rows_per_step() const { return world_size / sharers * batch_size * accumulation; }
};

// The settings' own first, then one rank (two where the settings ask for one), accumulation 1 (2
// where they ask for 1) and the other kind of checkpointing. An odd batch that would have to be cut
// in half is doubled in all of them.
std::vector<Layout> self_test_layouts(const config::RunConfig& config, int world_size);

// The settings' losses, but for those of answers that share a micro-batch: kto's is taken without
// its divergence (apo_zero_unpaired), aot and aot_unpaired as sigmoid.
std::vector<std::string> self_test_losses(const config::RunConfig& config);

// The settings with the layout and those losses, a few steps, nothing saved, nothing evaluated, and
// no dropout (whose draws belong to a micro-batch). `world_size`: what the settings were made for.
config::RunConfig self_test_settings(config::RunConfig config, const Layout& layout, int world_size,
                                     const std::filesystem::path& output_dir);

// How far a loss may be from the first layout's, relative to it where it is above 1; a gradient
// norm relative to the norm.
struct Tolerance {
  double loss;
  double gradient_norm;
};
// fp32: 1e-5 and 1e-3. Where something travels in 16 bits: their rounding, 2^-8 of bf16.
Tolerance self_test_tolerance(const config::ShardConfig& config);

struct Comparison {
  int64_t steps = 0;           // that were compared
  double loss = 0;             // of the last of them
  double loss_difference = 0;  // the largest, as Tolerance means it
  double norm_difference = 0;
  bool is_same(const Tolerance& tolerance) const;
};

// Compares two runs' rows of metrics.jsonl. Steps that reach an epoch's end are left out: layouts
// fill the last one up with different rows. Throws FormatError when the rows do not match, or when
// no step is left because the data set is smaller than one.
Comparison compare_runs(const std::vector<Json>& expected, const std::vector<Json>& found);

}  // namespace strata::train
