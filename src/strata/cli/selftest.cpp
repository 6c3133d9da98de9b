// `strata selftest [launch flags] RECIPE [flags]`: the same loss however the work is laid out?
#include <fcntl.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>

#include <fmt/ranges.h>

#include "strata/base/counted.h"
#include "strata/base/descriptor.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"
#include "strata/cli/command.h"
#include "strata/cli/run_sources.h"
#include "strata/config/flags.h"
#include "strata/config/serialize.h"
#include "strata/launch/supervisor.h"
#include "strata/report/metrics_file.h"
#include "strata/train/run.h"
#include "strata/train/self_test.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage =
    "usage: strata selftest [launch flags] sft [flags]\n\n"
    "Takes the arguments of `strata launch`. Runs a few steps on your own model, data and\n"
    "settings, as set, on one rank, with another gradient accumulation and with checkpointing\n"
    "switched, always on the same rows: the losses must be the same. Writes only to the system's\n"
    "folder for temporary files. Exit code 0: they are the same; 1: they are not.\n";

// The first argument of a rank of the test: what it runs follows as JSON.
constexpr const char* kRankFlag = "--rank";

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((fs::temp_directory_path() / "strata-selftest-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) {
      throw IoError("{}: found {} when making a folder, expected one; set TMPDIR to another place",
                    path_, errno_text(errno));
    }
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A rank of one of the test's runs.
int run_rank(const std::string& text, const std::vector<std::string>& flags) {
  const Json wish = parse_json(text, kRankFlag);
  const int own_world_size = wish.at("own_world_size").get<int>();
  config::Sources sources = rank_sources(flags, wish.at("recipe").get<std::string>());
  sources.world_size = own_world_size;
  const train::Layout layout{.name = "",
                             .world_size = wish.at("world_size").get<int>(),
                             .batch_size = wish.at("batch_size").get<int64_t>(),
                             .accumulation = wish.at("accumulation").get<int64_t>(),
                             .checkpointing = wish.at("checkpointing").get<bool>()};
  const config::RunConfig config =
      train::self_test_settings(config::resolve(sources).config, layout, own_world_size,
                                wish.at("output_dir").get<std::string>());
  train::run_steps(
      config, launch::detect_rank_environment(),
      {.json = config::to_json_text(config), .hash = config::settings_hash(config), .lines = ""},
      {});
  return 0;
}

struct Test {
  const config::LaunchLine& line;
  const config::Settings& settings;
  int world_size;
  const std::string& folder;
};

launch::LaunchPlan plan_of(const Test& test, const train::Layout& layout, const fs::path& output) {
  const Json wish{{"own_world_size", test.world_size},     {"world_size", layout.world_size},
                  {"batch_size", layout.batch_size},       {"accumulation", layout.accumulation},
                  {"checkpointing", layout.checkpointing}, {"output_dir", output.string()},
                  {"recipe", test.settings.config.recipe}};
  std::vector<std::string> command = {fs::read_symlink("/proc/self/exe").string(), "selftest",
                                      kRankFlag, dump_python(wish, /*indent=*/-1)};
  command.insert(command.end(), test.line.arguments.begin(), test.line.arguments.end());
  config::LaunchConfig launch = test.settings.config.launch;
  launch.num_processes = layout.world_size;
  launch.log_dir.clear();
  launch::LaunchPlan plan =
      launch::plan_launch(launch, launch::inspect_machine(launch), std::move(command), 0);
  plan.environment.emplace_back(kLaunchFlagsVariable, launch_flags_value(test.line.flags));
  return plan;
}

// The rows that the run logged. Throws with what the run said when it failed.
std::vector<Json> rows_of(const Test& test, const train::Layout& layout) {
  const fs::path output = fs::path(test.folder) / layout.name;
  const fs::path log = fs::path(test.folder) / (layout.name + ".log");
  const Descriptor file(::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (file.get() < 0) {
    throw IoError("{}: found {}, expected to write it", log.string(), errno_text(errno));
  }
  std::fflush(nullptr);
  const int code = launch::run_workers(plan_of(test, layout, output),
                                       {.streams = {.out = file.get(), .err = file.get()}})
                       .exit_code;
  if (code == 0) return report::read_metrics(output / "metrics.jsonl");
  const std::string said = read_file(log);
  const size_t error = said.find("error: ");
  throw Error(fmt::format("run \"{}\": found exit code {}, expected 0: {}", layout.name, code,
                          error == std::string::npos ? said : said.substr(error)));
}

void print_row(const train::Layout& layout, const std::string& loss, const std::string& rest) {
  fmt::print("  {:<15}{:>7}{:>12}{:>14}   {:<15}{:>10}   {}\n", layout.name, layout.world_size,
             layout.batch_size, layout.accumulation, layout.checkpointing ? "on" : "off", loss,
             rest);
  std::fflush(stdout);
}

int run_test(const Test& test) {
  const config::RunConfig& config = test.settings.config;
  const auto layouts = train::self_test_layouts(config, test.world_size);
  const train::Tolerance tolerance = train::self_test_tolerance(config.shard);
  const std::vector<Json> expected = rows_of(test, layouts[0]);
  const train::Comparison own = train::compare_runs(expected, expected);
  fmt::print(
      "self test: {} of {}, {}; losses may differ by {:.2g}, gradient norms by {:.2g} "
      "(relative){}{}\n",
      counted(own.steps, "step"), counted(layouts[0].rows_per_step(), "row"),
      config.shard.sharding_strategy, tolerance.loss, tolerance.gradient_norm,
      config.lora.use_peft ? "; without dropout" : "",
      train::self_test_losses(config) == config.preference.loss_type
          ? ""
          : fmt::format(
                "; with the loss {}, because the one that is set compares answers of a batch",
                fmt::join(train::self_test_losses(config), " ")));
  fmt::print("  {:<15}{:>7}{:>12}{:>14}   {:<15}{:>10}   {}\n", "run", "ranks", "rows a rank",
             "accumulation", "checkpointing", "last loss", "loss and norm differ by");
  print_row(layouts[0], fmt::format("{:.6f}", own.loss), "");
  bool is_same = true;
  for (size_t i = 1; i < layouts.size(); ++i) {
    const train::Comparison found = train::compare_runs(expected, rows_of(test, layouts[i]));
    const bool fits = found.is_same(tolerance);
    is_same &= fits;
    print_row(layouts[i], fmt::format("{:.6f}", found.loss),
              fmt::format("{:.1e}  {:.1e}  {}", found.loss_difference, found.norm_difference,
                          fits ? "same" : "DIFFERENT"));
  }
  fmt::print("self test: {}\n", is_same ? "passed" : "failed");
  return is_same ? 0 : 1;
}

}  // namespace

int run_selftest(const std::vector<std::string>& arguments) {
  if (arguments.size() >= 2 && arguments[0] == kRankFlag) {
    return run_rank(arguments[1], {arguments.begin() + 2, arguments.end()});
  }
  if (arguments.empty() || wants_help({arguments[0]})) {
    fmt::print("{}", kUsage);
    return arguments.empty() ? 2 : 0;
  }
  const config::LaunchLine line = read_launch_line(arguments, "selftest");
  config::Sources sources{.recipe = recipe_of(line),
                          .flags = line.arguments,
                          .launch_flags = line.flags,
                          .launch_command = "selftest",
                          .environment = process_environment(),
                          .use_default_file = true};
  const config::LaunchConfig launch = config::resolve(sources).config.launch;
  if (launch.num_machines > 1) {
    throw ConfigError("num_machines: found {}, expected 1: the self test runs on one machine",
                      launch.num_machines);
  }
  sources.world_size =
      launch::plan_launch(launch, launch::inspect_machine(launch), {}, 0).world_size;
  const config::Settings settings = config::resolve(sources);
  config::require_runnable(settings);
  print_warnings(settings.warnings);
  const TemporaryFolder folder;
  return run_test({line, settings, sources.world_size, folder.path()});
}

}  // namespace strata::cli
