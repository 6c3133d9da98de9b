#include "strata/train/saving/resume.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/folders.h"
#include "strata/checkpoint/manifest.h"
#include "strata/checkpoint/repair.h"
#include "strata/checkpoint/setting_text.h"
#include "strata/checkpoint/sharded.h"
#include "strata/comm/agreement.h"
#include "strata/comm/told_once.h"
#include "strata/config/field_text.h"
#include "strata/config/normal_text.h"
#include "strata/config/recipes.h"
#include "strata/config/settings/table.h"
#include "strata/hf/adapter_files.h"
#include "strata/models/reward_head.h"
#include "strata/train/loop/figures.h"
#include "strata/train/loop/loss_guard.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

bool shapes_training(const config::Setting& setting) {
  return setting.resume == config::Resume::kTraining || setting.resume == config::Resume::kBoth;
}

bool shapes_tensors(const config::Setting& setting) {
  return setting.resume == config::Resume::kTensors || setting.resume == config::Resume::kBoth;
}

// The same of both forms of the file: a list that nobody gave is null in one, empty in the other.
std::string text_in(const Json& settings, const config::Setting& setting) {
  const auto found = settings.find(std::string(setting.name));
  if (found != settings.end() && found->is_null() && config::is_list(setting)) return "";
  return config::normal_text(setting, checkpoint::setting_text(settings, setting.name));
}

// Whether both name one file or folder, which one of them may do from here and the other from the
// root.
bool is_same_place(const fs::path& one, const fs::path& other) {
  std::error_code error;
  return !one.empty() && !other.empty() && fs::equivalent(one, other, error) && !error;
}

// "lora_r 8 (was 4), ..." of the settings of that kind that were others; of those that an older
// version did not write nothing is said.
std::string other_settings(const Json& saved, const Json& now,
                           bool (*is_meant)(const config::Setting&)) {
  std::vector<std::string> others;
  for (const config::Setting& setting : config::settings_table()) {
    if (!is_meant(setting) || !saved.contains(std::string(setting.name))) continue;
    const std::string before = text_in(saved, setting), after = text_in(now, setting);
    if (before == after || (setting.is_path && is_same_place(before, after))) continue;
    others.push_back(fmt::format("{} {} (was {})", setting.name, after.empty() ? "none" : after,
                                 before.empty() ? "none" : before));
  }
  return fmt::format("{}", fmt::join(others, ", "));
}

// A checkpoint of which the files without tensors are whole.
struct OpenCheckpoint {
  explicit OpenCheckpoint(const fs::path& folder) : reader(folder) {
    const std::string path = (folder / "trainer_state.json").string();
    state = report::parse_trainer_state(reader.small_file("trainer_state.json"), path);
    progress = parse_json(reader.small_file("progress.json"), progress_path());
    // Compared with this run's when the choice has been made, too: a damaged one must count before.
    if (reader.manifest().files.contains("settings.json")) {
      settings = reader.small_file("settings.json");
    }
  }
  std::string progress_path() const { return (reader.folder() / "progress.json").string(); }

  checkpoint::PieceReader reader;
  report::TrainerState state;
  Json progress;
  std::string settings = "{}";
};

// A tensor of another shape, or none, follows from another setting: that is what can be changed.
// `settings_text`: empty where it is this run's own checkpoint.
void load_tensors(OpenCheckpoint& saved, Trainee& trainee, optim::Optimizer* optimizer,
                  const std::string& settings_text) {
  checkpoint::PieceReader& reader = saved.reader;
  try {
    checkpoint::load(reader, *trainee.store, optimizer);
  } catch (const FormatError& error) {
    if (settings_text.empty()) throw;
    const std::string others =
        other_settings(parse_json(saved.settings, (reader.folder() / "settings.json").string()),
                       parse_json(settings_text, "settings"), shapes_tensors);
    if (others.empty()) throw;
    throw FormatError(
        "resume_from_checkpoint: found {}, expected the settings of the run that saved {}; set "
        "them back, or start again in another output_dir ({})",
        others, reader.folder().string(), error.what());
  }
}

// Why a checkpoint could not be used, on all ranks alike, or nothing. Collective over the world.
std::optional<std::string> load_one(const fs::path& folder, Trainee& trainee,
                                    optim::Optimizer* optimizer, const ApplyProgress& apply,
                                    const std::string& settings_text = {}) {
  comm::Group& world = *trainee.store->mesh().world;
  std::optional<OpenCheckpoint> saved;
  // Ranks load tensors together or not at all.
  if (auto why = comm::shared_failure(world, [&] { saved.emplace(folder); })) return why;
  return comm::shared_failure(world, [&] {
    load_tensors(*saved, trainee, optimizer, settings_text);
    trainee.executor->parameters_changed();
    try {
      apply(saved->state, saved->progress);
    } catch (const Json::exception& error) {
      throw FormatError(
          "{}: found a field that is missing or of another type ({}), expected what this version "
          "writes; resume from another checkpoint",
          saved->progress_path(), error.what());
    }
  });
}

// The ranks of a run read one list: another rank may see a folder a moment later than rank 0.
std::vector<fs::path> agree_on(const std::vector<fs::path>& found, comm::Group& world) {
  std::string all;  // a path may hold anything but a zero
  for (const fs::path& path : found) all += path.string() + '\0';
  all = comm::broadcast_string(world, all);
  std::vector<fs::path> agreed;
  for (size_t at = 0; at < all.size(); at = all.find('\0', at) + 1) {
    agreed.emplace_back(all.c_str() + at);
  }
  return agreed;
}

// The first of them that can be used, or nothing: then `failure` is why the first one could not.
std::optional<fs::path> load_first(const std::vector<fs::path>& folders, Trainee& trainee,
                                   const ApplyProgress& apply,
                                   const std::function<void(const std::string&)>& say,
                                   std::string& failure, const std::string& settings_text = {}) {
  for (const fs::path& folder : folders) {
    const auto why = load_one(folder, trainee, trainee.optimizer.get(), apply, settings_text);
    if (!why) {
      if (!failure.empty()) say("resuming from " + folder.string() + " instead");
      return folder;
    }
    if (failure.empty()) failure = *why;
    say("cannot resume from " + folder.string() + ": " + *why);
  }
  return std::nullopt;
}

// Several names may stand for one recipe. Empty: an unknown one, of another version.
std::string command_of(const std::string& name) {
  const auto found = std::ranges::find(config::recipes(), name, &config::RecipeRow::name);
  return found == config::recipes().end() ? "" : std::string(found->command);
}

// The rule whose state a name of `optim` keeps; paged, fused and 8-bit forms say so themselves
// where they cannot be read.
std::string_view optimizer_rule(std::string_view name) {
  if (name.starts_with("paged_")) name.remove_prefix(std::string_view("paged_").size());
  return name.substr(0, name.find_first_of("_w"));  // adam and adamw keep the same
}

// Errors: ConfigError where a state means something else in this run.
void require_same_kind(const fs::path& source, const Json& saved, const Json& now) {
  // Weights of the same names mean something else there: a tied model needs no output layer.
  const std::string trained = command_of(checkpoint::setting_text(saved, "recipe"));
  const std::string trains = command_of(checkpoint::setting_text(now, "recipe"));
  if (!trained.empty() && !trains.empty() && trained != trains) {
    throw ConfigError(
        "resume_from_checkpoint: found {}, saved by the recipe {}, with the recipe {}, expected a "
        "checkpoint of its own; resume it with that recipe, or start again in another output_dir",
        source.string(), trained, trains);
  }
  const std::string was = checkpoint::setting_text(saved, "optim"),
                    is = checkpoint::setting_text(now, "optim");
  if (!was.empty() && !is.empty() && optimizer_rule(was) != optimizer_rule(is)) {
    throw ConfigError(
        "optim: found {}, expected {} as in the run that saved {}, whose state means nothing to "
        "another rule; set it back, or start again with its weights: strata convert {} OUT --to "
        "safetensors",
        is, was, source.string(), source.string());
  }
}

// Whether the rows of both runs may be those of one set. A stream that was read as far as the steps
// of a run need says only that the set has as many.
bool may_be_one_set(const DataRows& now, const Json& progress) {
  const auto count = progress.value("num_rows", now.count);
  // Older versions do not say it: of a stream they may have wanted no more than they had.
  const auto wanted = progress.value("num_wanted_rows", now.wanted == 0 ? int64_t{0} : count);
  const bool is_whole = now.wanted == 0 || now.count < now.wanted;
  const bool was_whole = wanted == 0 || count < wanted;
  if (is_whole && was_whole) return now.count == count;
  return is_whole ? count <= now.count : !was_whole || now.count <= count;
}

}  // namespace

std::vector<std::string> look_for_checkpoint(const config::TrainConfig& config,
                                             const std::string& settings_text) {
  const bool is_named = !checkpoint::means_newest(config.resume_from_checkpoint);
  std::vector<std::string> repaired;
  if (is_named) repaired = checkpoint::repair(config.resume_from_checkpoint);
  const fs::path first =
      checkpoint::candidates(config.resume_from_checkpoint, config.output_dir).front();
  if (is_named) checkpoint::read_manifest(first);  // of several the next one may do
  Json saved;
  try {
    const std::string path = (first / "settings.json").string();
    saved = parse_json(read_file(path), path);
  } catch (const Error&) {
    return repaired;  // damaged, or of an older version: judged with the tensors
  }
  require_same_kind(first, saved, parse_json(settings_text, "settings"));
  return repaired;
}

fs::path resume(const config::TrainConfig& config, const std::string& settings_text,
                Trainee& trainee, const ApplyProgress& apply,
                const std::function<void(const std::string&)>& say) {
  comm::Group& world = *trainee.store->mesh().world;
  std::vector<fs::path> found;
  comm::all_or_nothing(world, "looking for checkpoints", [&] {
    if (world.rank() != 0) return;
    if (!checkpoint::means_newest(config.resume_from_checkpoint)) {
      for (const std::string& line : checkpoint::repair(config.resume_from_checkpoint)) say(line);
    }
    found = checkpoint::candidates(config.resume_from_checkpoint, config.output_dir);
  });
  std::string failure;
  const auto source =
      load_first(agree_on(found, world), trainee, apply, say, failure, settings_text);
  comm::all_or_nothing_told_once(world, "resuming", [&] {
    if (!source) throw FormatError(failure);
  });
  if (world.rank() == 0 && checkpoint::means_newest(config.resume_from_checkpoint)) {
    for (const checkpoint::PassedOver& one : checkpoint::passed_over(config.output_dir)) {
      if (checkpoint::step_of(one.folder) <= checkpoint::step_of(*source)) continue;
      say(fmt::format("warning: {} is skipped: {}", one.folder.string(), one.reason));
    }
    for (const fs::path& folder : checkpoint::set_aside(config.output_dir)) {
      if (folder == *source) continue;
      say(
          fmt::format("warning: {} is skipped: it was there before `latest` was written, so an "
                      "earlier run saved it; name it in resume_from_checkpoint to continue from it",
                      folder.string()));
    }
  }
  return *source;
}

std::optional<fs::path> return_to(const std::function<std::vector<fs::path>()>& candidates,
                                  Trainee& trainee, const ApplyProgress& apply,
                                  const std::function<void(const std::string&)>& say) {
  comm::Group& world = *trainee.store->mesh().world;
  std::vector<fs::path> found;
  comm::all_or_nothing(world, "looking for checkpoints", [&] {
    if (world.rank() == 0) found = candidates();
  });
  std::string failure;
  return load_first(agree_on(found, world), trainee, apply, say, failure);
}

void load_weights(const fs::path& folder, Trainee& trainee, const ApplyProgress& apply,
                  const std::string& otherwise) {
  comm::Group& world = *trainee.store->mesh().world;
  const auto failure = load_one(folder, trainee, /*optimizer=*/nullptr, apply);
  comm::all_or_nothing_told_once(world, "loading the best checkpoint", [&] {
    if (!failure) return;
    throw FormatError("{} (load_best_model_at_end){}{}; resume from another checkpoint without it",
                      *failure, otherwise.empty() ? "" : "; ", otherwise);
  });
}

std::vector<std::string> different_rows(const DataRows& now, const Json& progress) {
  std::vector<std::string> lines;
  const auto compare = [&](const char* key, int64_t found, std::string_view what,
                           std::string_view consequence) {
    if (!progress.contains(key) || progress.at(key).get<int64_t>() == found) return;
    lines.push_back(fmt::format(
        "warning: resume_from_checkpoint: found {} {}, expected {} as in the run that saved it; {}",
        found, what, progress.at(key).get<int64_t>(), consequence));
  };
  compare("rows_per_step", now.per_step, "rows per step (ranks x batch x accumulation)",
          "step numbers continue, so rows are left out or trained on twice");
  if (!may_be_one_set(now, progress)) {
    compare("num_rows", now.count, "rows of training data",
            "their order differs, so rows are left out or trained on twice");
  }
  compare("data_seed", now.seed, "as data_seed",
          "rows come in another order, so some are left out or trained on twice");
  const bool has_as_many = progress.value("num_rows", int64_t{-1}) == now.count;
  if (has_as_many && progress.value("rows_content", now.content) != now.content) {
    lines.push_back(
        "warning: resume_from_checkpoint: found as many rows of training data with other tokens, "
        "expected those of the run that saved it: the data's files differ, or what tokenizes them "
        "(tokenizer, template and the date that it writes, settings)");
  }
  return lines;
}

std::vector<std::string> resume_lines(const fs::path& source, int64_t step, int64_t max_steps,
                                      const std::string& settings_text) {
  std::vector<std::string> lines{
      fmt::format("resuming from {}: step {} of {}{}", source.string(), step, max_steps,
                  step < max_steps ? "" : "; nothing is left to train, the result is its model")};
  const std::string path = (source / "settings.json").string();
  if (!fs::is_regular_file(path)) return lines;
  const Json saved = parse_json(read_file(path), path);
  const Json now = parse_json(settings_text, "settings");
  require_same_kind(source, saved, now);
  const std::string others = other_settings(saved, now, shapes_training);
  if (!others.empty()) {
    lines.push_back(fmt::format(
        "warning: resume_from_checkpoint: found other settings than in the run that saved it: {}; "
        "set them back unless this is intended",
        others));
  }
  // Those of an older version: it spared norms and biases where DeepSpeed's files do not.
  const bool is_new = !saved.empty() && !saved.contains("decay_norms_and_biases");
  if (is_new && now.value("decay_norms_and_biases", false) && now.value("weight_decay", 0.0) > 0) {
    lines.push_back(
        "warning: resume_from_checkpoint: found a run whose norms and biases did not decay, now "
        "they do, as with DeepSpeed's optimizer; set decay_norms_and_biases false unless this is "
        "intended");
  }
  return lines;
}

std::vector<std::string> different_tokenizer(const fs::path& source,
                                             const checkpoint::SmallFiles& companions) {
  // Another tool's files may say the same in other words.
  if (!fs::is_regular_file(source / "settings.json")) return {};
  std::vector<std::string> names;
  for (const auto& [name, content] : companions) {
    const bool is_models = name == "config.json" || name == "generation_config.json" ||
                           name == hf::kAdapterConfigFile || name == models::kLabelsFile;
    if (is_models || !fs::is_regular_file(source / name)) continue;
    if (read_file(source / name) != content) names.push_back(name);
  }
  if (names.empty()) return {};
  return {fmt::format(
      "warning: resume_from_checkpoint: found another {} than the one in {}, expected that of the "
      "run that saved it, whose model has learnt its tokens and templates; name that folder with "
      "tokenizer_name unless this is intended",
      fmt::join(names, ", "), source.string())};
}

void require_same_labels(const fs::path& source, const checkpoint::SmallFiles& companions) {
  for (const char* name : {"config.json", models::kLabelsFile}) {
    const auto written = companions.find(name);
    if (written == companions.end() || !fs::is_regular_file(source / name)) continue;
    const Json saved = read_json_file(source / name), now = parse_json(written->second, name);
    const auto require = [&](std::string_view what, const Json& labels, const Json& expected) {
      if (labels == expected) return;
      throw ConfigError(
          "resume_from_checkpoint: found {} {} in {}, expected those of the data, {}; continue "
          "with the rows of the run that saved it, or start in another output_dir",
          what, labels.dump(), (source / name).string(), expected.dump());
    };
    const auto labels_of = [](const Json& config) {
      return config.value("id2label", Json::object());
    };
    require("labels", labels_of(saved), labels_of(now));
    const Json problem = now.value("problem_type", Json());
    // Other tools need not say it.
    const Json other = saved.value("problem_type", Json());
    require("labels for", other.is_null() ? problem : other, problem);
  }
}

Json to_json(const DataRows& rows) {
  return {{"rows_per_step", rows.per_step},
          {"num_rows", rows.count},
          {"num_wanted_rows", rows.wanted},
          {"data_seed", rows.seed},
          {"rows_content", rows.content}};
}

checkpoint::SmallFiles fresh_progress(const fs::path& source, int64_t step,
                                      const std::string& base_fingerprint) {
  report::TrainerState state;
  for (const fs::path& folder : {source, source.parent_path()}) {
    const fs::path file = folder / "trainer_state.json";
    if (!fs::is_regular_file(file)) continue;
    state = report::parse_trainer_state(read_file(file), file.string());
    break;
  }
  state.global_step = step;
  Json window = MeanFigures().state();
  window.update({{"loss", 0.0}, {"steps", 0}});
  Json progress{{"num_tokens", state.num_input_tokens_seen},
                {"log_window", window},
                {"loss_guard", LossGuard(0).state()}};
  if (!base_fingerprint.empty()) progress["base_fingerprint"] = base_fingerprint;
  return {{"trainer_state.json", report::trainer_state_text(state)},
          {"progress.json", dump_python(progress) + "\n"},
          {"settings.json", "{}\n"}};
}

}  // namespace strata::train
