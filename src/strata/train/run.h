// A recipe (sft, dpo, ...) from settings to saved result. Owns: the order of the big steps. Never:
// prints; text leaves through Output.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "strata/base/status_page.h"
#include "strata/config/run_config.h"
#include "strata/launch/environment.h"

namespace strata::train {

// Where a run's output goes: rank 0's text, and that of others while they wait for it; where every
// rank tells what it is doing.
struct Output {
  std::function<void(std::string_view)> write = [](std::string_view) {};
  bool is_terminal = false;
  std::function<int()> columns = [] { return 80; };
  bool unicode = true;
  Status* status = nullptr;  // null: nobody asks
};

struct RunResult {
  int64_t global_step = 0;
  double train_loss = 0;
  std::filesystem::path output_dir;
  bool is_stopped = false;  // on request from outside, before the end: saved, without a result
};

// The resolved settings as text.
struct SettingsText {
  std::string json;   // kept in checkpoints
  std::string hash;   // of what must be equal on all ranks (I8)
  std::string lines;  // the same for people, to name what is not equal; may be empty
};

// Collective over the ranks of `environment`. Checks everything it can before it allocates.
RunResult run_recipe(const config::RunConfig& config, const launch::RankEnvironment& environment,
                     const SettingsText& settings, const Output& output);

// The same without the last part: no result is written, only metrics.jsonl.
RunResult run_steps(const config::RunConfig& config, const launch::RankEnvironment& environment,
                    const SettingsText& settings, const Output& output);

}  // namespace strata::train
