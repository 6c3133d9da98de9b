// `strata sft`, `strata dpo` and their like: a recipe in this process, one rank of a run or the
// only one.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include <c10/util/Logging.h>
#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/checkpoint/folders.h"
#include "strata/cli/command.h"
#include "strata/cli/early_stop.h"
#include "strata/cli/plan_report.h"
#include "strata/cli/run_sources.h"
#include "strata/cli/standard_streams.h"
#include "strata/config/describe.h"
#include "strata/config/recipes.h"
#include "strata/config/serialize.h"
#include "strata/launch/address.h"
#include "strata/launch/environment.h"
#include "strata/launch/restarts.h"
#include "strata/launch/stack_trace.h"
#include "strata/libtorch/cuda_build.h"
#include "strata/memory/allocator.h"
#include "strata/report/progress.h"
#include "strata/train/run.h"

namespace strata::cli {
namespace {

std::string usage_of(const config::RecipeRow& recipe) {
  return fmt::format(
      "usage: strata {0} [flags]\n"
      "       strata {0} run.yaml [flags]\n"
      "       strata launch --num_processes N {0} [flags]\n\n{1}",
      recipe.command, recipe.description);
}

bool is_utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (!value || !*value) continue;
    const std::string_view text(value);
    return text.find("UTF-8") != text.npos || text.find("utf8") != text.npos;
  }
  return false;
}

train::Output terminal_output() {
  const char* term = std::getenv("TERM");
  return {.write = [](std::string_view text) { launch::write_all(STDOUT_FILENO, text); },
          .is_terminal = ::isatty(STDOUT_FILENO) == 1 && term && std::string_view(term) != "dumb",
          .columns = [] { return report::terminal_columns(STDOUT_FILENO); },
          .unicode = is_utf8_locale()};
}

// A file may ask for more ranks than this process belongs to.
void require_all_ranks(const config::Settings& settings, const launch::RankEnvironment& ranks) {
  const int wanted = settings.config.launch.num_processes;
  if (wanted == 0 || wanted == ranks.world_size) return;
  throw ConfigError(
      "num_processes: found {} ({}) with {} running, expected the same; start with "
      "strata launch",
      wanted, settings.source_of("num_processes"), ranks.world_size);
}

// What libraries read from the environment; no other thread may be reading it yet.
void set_variables_of_libraries() {
  // libtorch warns of every host name without a reverse entry and of every attempt to connect.
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*replace=*/0);
  c10::initLogging();
  // Groups of NCCL have a stream each, so that collectives of two may run at once; that each GPU
  // starts them in the order of its program keeps them from waiting for each other in a circle.
  // NCCL 2.26 can.
  if constexpr (kHasCuda) ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*replace=*/0);
}

// Variables of other launchers; our own has looked at its flag already.
void require_meeting_point(const launch::RankEnvironment& ranks) {
  if (ranks.world_size > 1) launch::require_known_host("MASTER_ADDR", ranks.master_addr);
}

// A rank that is started again continues from what its run has saved, not from an older run's. Rank
// 0's look counts for all.
void resume_after_restart(config::RunConfig& config, int rank) {
  const int count = launch::restart_count();
  if (count == 0 || rank != 0) return;
  const std::optional<double> launched = launch::launch_time();
  const std::string saved =
      launched ? checkpoint::saved_by_launch(config.train.output_dir, *launched) : "";
  const bool goes_on = !saved.empty() && !config.train.save_only_model;
  if (goes_on) config.train.resume_from_checkpoint = saved;
  std::string line =
      saved.empty() ? "nothing was saved yet" : "what was saved has no optimizer (save_only_model)";
  line += config.train.resume_from_checkpoint.empty() ? ", starting from the beginning"
                                                      : ", resuming as before";
  if (goes_on) {
    line = "going on from " +
           (saved == "true" ? "the newest checkpoint in " + config.train.output_dir : saved);
  }
  tell("restart {}: {}\n", count, line);
}

}  // namespace

int run_recipe(const config::RecipeRow& recipe, const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}{}", usage_of(recipe), config::flags_help(config::Scope::kRun, help_columns()));
    return 0;
  }
  set_variables_of_libraries();
  config::Sources sources = rank_sources(arguments, std::string(recipe.name));
  memory::install_cpu_allocator();
  const launch::RankEnvironment ranks = launch::detect_rank_environment();
  sources.world_size = ranks.world_size;
  config::Settings settings = config::resolve(sources);
  config::require_runnable(settings);
  if (settings.config.launch.dry_run) {
    print_warnings(settings.warnings);
    fmt::print("{}",
               with_sources(settings, [&] { return dry_run_report(settings, ranks.world_size); }));
    return 0;
  }
  outlive_readers();
  end_on_early_request(ranks.rank == 0 ? kStoppedEarly : nullptr);
  require_all_ranks(settings, ranks);
  require_meeting_point(ranks);
  // All ranks were given these alike; what lies in the folder each may see at another moment.
  const std::string hash = config::settings_hash(settings.config);
  const std::string lines = config::shared_settings(settings);
  resume_after_restart(settings.config, ranks.rank);
  // A launcher has said them already.
  const bool is_launched = sources.environment.contains(kLaunchFlagsVariable);
  if (ranks.rank == 0 && !is_launched) print_warnings(settings.warnings);
  Status status(ranks.status_descriptor);
  const launch::StacksOnRequest stacks(status.page(), ranks.stack_descriptor);
  train::Output output = terminal_output();
  output.status = &status;
  const train::RunResult result = with_sources(settings, [&] {
    return train::run_recipe(
        settings.config, ranks,
        {.json = config::to_json_text(settings.config), .hash = hash, .lines = lines}, output);
  });
  return result.is_stopped ? launch::kStoppedExitCode : 0;
}

}  // namespace strata::cli
