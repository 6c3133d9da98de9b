// Dispatch, help, version and error text.
#include "strata/cli/command.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <new>
#include <system_error>
#include <thread>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/save_request.h"
#include "strata/base/stop_request.h"
#include "strata/base/text_distance.h"
#include "strata/base/visible_text.h"
#include "strata/cli/bus_error.h"
#include "strata/cli/run_sources.h"
#include "strata/cli/standard_streams.h"
#include "strata/comm/told_once.h"
#include "strata/report/progress.h"

namespace strata::cli {
namespace {

const Command kCommands[] = {
    {"launch", "start one process per rank: strata launch --num_processes 2 sft --flags",
     run_launch},
    {"selftest", "check that 1 and N ranks, and other layouts, give the same loss", run_selftest},
    {"chat", "chat with a model, with or without an adapter", run_chat},
    {"preview", "show what the model will see of the data: tokens, masks, lengths, mistakes",
     run_preview},
    {"tokenize",
     "turn text or conversations into token ids, tokens and offsets, and "
     "back",
     run_tokenize},
    {"config", "ask for settings, show, check, convert or document them", run_config},
    {"slurm", "write a batch script for SLURM from the same settings, and submit it", run_slurm},
    {"env", "show what this machine offers and what would fail", run_env},
    {"ds_report", "the same as env", run_env},
    {"to-fsdp2", "the same as config convert --to fsdp2", run_to_fsdp2},
    {"inspect", "show what a checkpoint, model, adapter or file of tensors holds", run_inspect},
    {"convert", "convert models and checkpoints: safetensors, PyTorch DCP, torch.save, GGUF",
     run_convert},
    {"merge-weights", "merge a sharded checkpoint into one model", run_merge_weights},
    {"merge-adapter", "fold an adapter into its base model", run_merge_adapter},
    {"plan", "show the memory of a run before it starts", run_plan},
    {"estimate-memory", "the same as plan", run_plan},
};

// The launcher, the recipes, everything else.
std::vector<Command> all_commands() {
  std::vector<Command> all(std::begin(kCommands), std::end(kCommands));
  auto next = all.begin() + 1;
  for (const config::RecipeRow& recipe : config::recipes()) {
    if (recipe.name != recipe.command) continue;
    const auto run = [&recipe](const std::vector<std::string>& arguments) {
      return run_recipe(recipe, arguments);
    };
    next = all.insert(next, {recipe.command, recipe.summary, run}) + 1;
  }
  return all;
}

// A rank that failed closes its connections before it says why. The others, which notice at once,
// wait so that the cause stands first.
constexpr std::chrono::milliseconds kCauseFirst{500};

constexpr const char* kOutOfMemory =
    "memory: found less than the run needs, expected enough; lower per_device_train_batch_size or "
    "max_length, or use more ranks";

std::string overview() {
  std::string text = "strata: fine-tunes large language models across many processors\n\nusage:\n";
  for (const Command& command : all_commands()) {
    text += fmt::format("  strata {:<15} {}\n", command.name, command.summary);
  }
  text += fmt::format("  strata {:<15} {}\n\n", "--version", "the program's version");
  return text + "Run strata COMMAND --help for more.\n";
}

// Ranks above 0 that `strata launch` started are labelled by it.
std::string rank_label() {
  const char* rank = std::getenv("RANK");
  const char* world_size = std::getenv("WORLD_SIZE");
  if (!rank || !world_size || std::string_view(world_size) == "1") return "";
  if (std::getenv("STRATA_LAUNCH_TIME") && std::string_view(rank) != "0") return "";
  return fmt::format("[rank {}] ", rank);
}

// The first rank of a machine; every rank where no launcher says which that is.
bool speaks_for_machine() {
  const char* rank = std::getenv("LOCAL_RANK");
  return rank == nullptr || std::string_view(rank) == "0";
}

int fail(const std::string& message, int exit_code) {
  std::fflush(stdout);
  tell("{}error: {}\n", rank_label(), visible(message));
  return exit_code;
}

// What other programs call something that is a command here, or no command.
std::string advice_for(const std::string& word) {
  constexpr const char* kTrain =
      "strata sft trains (dpo, orpo, cpo and reward from pairs of answers, kto from rated ones, "
      "classify from texts with labels), strata launch starts several ranks";
  constexpr const char* kAsk = "use strata chat (--prompt for one answer)";
  constexpr const char* kEvaluate =
      "to evaluate only, run strata sft --eval_on_start --max_steps 1 --learning_rate 0 "
      "--save_strategy no";
  constexpr const char* kLaunch = "use strata launch instead";
  constexpr const char* kLeaveOut = "leave the word out: strata launch, strata sft and so on";
  static const std::map<std::string_view, const char*> kAdvice = {
      {"torchrun", kLaunch},
      {"deepspeed", kLaunch},
      {"mpirun", kLaunch},
      {"accelerate", kLeaveOut},
      {"trl", kLeaveOut},
      {"train", kTrain},
      {"finetune", kTrain},
      {"fine-tune", kTrain},
      {"pretrain", kTrain},
      {"generate", kAsk},
      {"inference", kAsk},
      {"predict", kAsk},
      {"serve", "there is no server; use strata chat"},
      {"eval", kEvaluate},
      {"evaluate", kEvaluate},
      {"merge",
       "strata merge-adapter folds an adapter into its model, strata merge-weights merges a "
       "sharded checkpoint into one model"},
      {"export",
       "strata convert writes other formats, strata merge-adapter a model with its "
       "adapter"},
      {"quantize",
       "strata convert --to bnb-4bit (or bnb-8bit) writes quantised weights, --load_in_4bit "
       "quantises while a model is loaded"},
      {"preprocess", "strata preview shows what a run would see of its data"},
      {"test", "strata selftest trains a few steps in several layouts"}};
  if (word.ends_with(".py")) return fmt::format("write strata launch {}", word);
  const auto found = kAdvice.find(word);
  return found == kAdvice.end() ? "" : found->second;
}

// Those that answer a request to stop themselves (early_stop.h).
bool starts_a_run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return false;
  return arguments[0].starts_with("--") || arguments[0] == "launch" ||
         config::is_recipe_command(arguments[0]);
}

int dispatch(const std::vector<std::string>& arguments) {
  if (!starts_a_run(arguments)) release_stop_requests();
  if (arguments.size() == 2 && arguments[0] == "help") return dispatch({arguments[1], "--help"});
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" ||
      arguments[0] == "help") {
    fmt::print("{}", overview());
    return arguments.empty() ? 2 : 0;
  }
  if (arguments[0] == "--version" || arguments[0] == "version") {
    fmt::print("strata {} (libtorch {})\n", STRATA_VERSION, TORCH_VERSION);
    return 0;
  }
  // `deepspeed --num_gpus=8 train.py ...` with its name replaced.
  if (arguments[0].starts_with("--")) return run_launch(arguments);
  std::vector<std::string> names;
  for (const Command& command : all_commands()) {
    if (command.name == arguments[0]) return command.run({arguments.begin() + 1, arguments.end()});
    names.emplace_back(command.name);
  }
  require_own_method(arguments[0]);
  if (const std::string advice = advice_for(arguments[0]); !advice.empty()) {
    throw ConfigError("{}: found an unknown command, expected a known one; {}", arguments[0],
                      advice);
  }
  if (const auto near = closest(arguments[0], names)) {
    throw ConfigError("{}: found an unknown command, expected a known one; did you mean {}?",
                      arguments[0], *near);
  }
  throw ConfigError("{}: found an unknown command, expected one of {}; see strata --help",
                    arguments[0], fmt::join(names, ", "));
}

}  // namespace

bool wants_help(const std::vector<std::string>& arguments) {
  return std::ranges::any_of(
      arguments, [](const std::string& text) { return text == "--help" || text == "-h"; });
}

int help_columns() {
  constexpr int kWidest = 100;
  return ::isatty(STDOUT_FILENO) == 1 ? std::min(report::terminal_columns(STDOUT_FILENO), kWidest)
                                      : kWidest;
}

int run(int argc, char** argv) {
  fill_standard_streams();
  // A launcher passes on what comes before its ranks are there, or between two starts of them.
  hold_stop_requests();
  hold_save_requests();
  name_file_of_bus_error(rank_label());
  ::signal(SIGXFSZ, SIG_IGN);  // a file larger than `ulimit -f` is an error with its name
  try {
    const int exit_code = dispatch({argv + std::min(argc, 1), argv + argc});
    if (exit_code == 0) require_written_output();
    return exit_code;
  } catch (const comm::SameFailure& error) {
    std::this_thread::sleep_for(kCauseFirst);
    // On another machine nobody may see what rank 0 says.
    return speaks_for_machine() ? fail(error.what(), error.exit_code()) : error.exit_code();
  } catch (const CommError& error) {
    std::this_thread::sleep_for(kCauseFirst);
    return fail(error.what(), error.exit_code());
  } catch (const Error& error) {
    return fail(error.what(), error.exit_code());
  } catch (const c10::OutOfMemoryError&) {
    return fail(kOutOfMemory, 1);
  } catch (const c10::Error& error) {
    // Without the backtrace of C++ frames that follows the first line.
    return fail(error.what_without_backtrace(), 1);
  } catch (const std::bad_alloc&) {
    return fail(kOutOfMemory, 1);
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(fmt::format("{}: found {}, expected a path that can be used; check it and its "
                            "permissions",
                            error.path1().string(), errno_text(error.code().value())),
                1);
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) return fail(error.what(), 1);
    return fail(
        "this process: found that the system starts no more threads, expected several for each "
        "rank; raise the limit of processes (ulimit -u, pids of the container), or start fewer",
        1);
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  }
}

}  // namespace strata::cli
