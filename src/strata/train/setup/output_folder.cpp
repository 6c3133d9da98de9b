#include "strata/train/setup/output_folder.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/probe_file.h"
#include "strata/checkpoint/repair.h"
#include "strata/comm/agreement.h"
#include "strata/comm/told_once.h"
#include "strata/data/files/future_rows.h"
#include "strata/train/datasets.h"
#include "strata/train/saving/preflight.h"
#include "strata/train/setup/offload.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

// What was found to do, a sentence each.
std::vector<std::string> check_output_folder(const config::RunConfig& config) {
  std::vector<std::string> done = checkpoint::finish_interrupted(config.train.output_dir);
  // What an interrupted save of an earlier run left is not a checkpoint and never will be.
  constexpr std::string_view kWritten[] = {
      "checkpoint-",        "model",       "adapter",     "latest",    "metrics.jsonl",
      "trainer_state.json", "report.html", "config.json", "tokenizer", "reference_log_probs"};
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(config.train.output_dir)) {
    const std::string name = entry.path().filename().string();
    const size_t end = name.find(".tmp-");  // .tmp-PID, .tmp-removed
    if (end == std::string::npos) continue;
    const std::string_view rest = std::string_view(name).substr(end + 5);
    const bool is_number = rest.find_first_not_of("0123456789") == std::string_view::npos;
    if (rest != "removed" && (rest.empty() || !is_number)) continue;
    const bool is_own = std::ranges::any_of(
        kWritten, [&](std::string_view written) { return name.starts_with(written); });
    if (is_own && (entry.is_regular_file() || name.starts_with("checkpoint-"))) {
      left.push_back(entry.path());
    }
  }
  for (const fs::path& path : left) fs::remove_all(path);
  remove_left_probes(config.train.output_dir);
  return done;
}

// What this run starts from would be gone when its result is written.
void check_sources(const config::RunConfig& config) {
  const fs::path folder = config.train.output_dir;
  const std::pair<const char*, const std::string&> sources[] = {
      {"model", config.model.model_name_or_path}, {"adapter", config.model.adapter_name_or_path}};
  for (const auto& [what, path] : sources) {
    std::error_code error;  // a name of the Hub is no folder
    if (path.empty() || !fs::equivalent(path, folder, error) || error) continue;
    throw ConfigError(
        "output_dir: found {}, the folder of the {} that this run starts from, expected another: "
        "its weights would be replaced; choose another folder",
        folder.string(), what);
  }
}

// What a run writes would take the place of files that the manifest, or transformers' Trainer,
// knows by their content.
void check_is_no_checkpoint(const fs::path& folder) {
  const bool is_ours = fs::exists(folder / "manifest.json") && fs::exists(folder / "progress.json");
  const bool is_of_trainer =
      fs::exists(folder / "optimizer.pt") && fs::exists(folder / "scheduler.pt");
  if (!is_ours && !is_of_trainer) return;
  const std::string name = folder.lexically_normal().string();
  throw ConfigError(
      "output_dir: found {}, a checkpoint of a run, expected a folder of its own: files of the "
      "checkpoint would be replaced; choose another folder{}",
      name, is_ours ? "; --resume_from_checkpoint " + name + " goes on from it" : "");
}

// A file that is written here must not become a row of the next start, such as a resumed one.
void check_data_sets(const config::RunConfig& config) {
  const fs::path folder = config.train.output_dir;
  for (const char* file : {"metrics.jsonl", "checkpoint-1/config.json"}) {
    const std::string reader = data::set_that_would_read(data_name(config.data), config.data.splits,
                                                         config.data.dataset_config, folder / file);
    if (reader.empty()) continue;
    throw ConfigError(
        "output_dir: found {} in the data set {}, expected a folder outside of it: what the run "
        "writes there ({}) would be read as rows at the next start; choose another folder, or name "
        "the files that hold rows in dataset_name",
        folder.string(), reader, file);
  }
}

// A folder that holds both a model and an adapter means another thing to every tool that loads it.
void check_kind_of_result(const config::RunConfig& config) {
  const fs::path folder = config.train.output_dir;
  const bool makes_adapter = config.lora.use_peft || !config.model.adapter_name_or_path.empty();
  const char* other = makes_adapter ? "config.json" : "adapter_config.json";
  if (!fs::exists(folder / other)) return;
  throw ConfigError(
      "output_dir: found {} of an earlier run in {}, expected no {} next to the {} that this run "
      "writes; choose another folder",
      other, folder.string(), makes_adapter ? "model" : "adapter",
      makes_adapter ? "adapter" : "model");
}

}  // namespace

void take_output_folder(const config::RunConfig& config, comm::Group& world, OutputFolder& taken) {
  const fs::path folder = config.train.output_dir;
  std::string owner;
  comm::all_or_nothing_told_once(world, "preparing the output folder", [&] {
    check_offload_folders(config.shard);
    if (world.rank() != 0) return;
    require_writable_folder(folder);
    taken.lock.emplace(folder);
    owner = taken.lock->owner();
    taken.notes = check_output_folder(config);
    if (taken.lock->is_by_name()) {
      taken.notes.push_back(
          fmt::format("output_dir: the file system of {} has no locks (flock); the file "
                      ".lock-owner in it keeps "
                      "other runs out",
                      folder.string()));
    }
    check_sources(config);
    check_is_no_checkpoint(folder);
    check_data_sets(config);
    check_kind_of_result(config);
  });
  owner = comm::broadcast_string(world, owner);
  comm::all_or_nothing(world, "looking at the output folder", [&] {
    if (world.rank() != 0) require_shared_folder(folder, world.rank(), owner);
  });
}

}  // namespace strata::train
