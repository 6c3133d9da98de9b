#include "strata/train/saving/results.h"

#include "strata/base/byte_size.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/export.h"
#include "strata/checkpoint/finite_values.h"
#include "strata/checkpoint/import.h"
#include "strata/checkpoint/special_tokens.h"
#include "strata/checkpoint/state_pieces.h"
#include "strata/comm/agreement.h"
#include "strata/config/recipes.h"
#include "strata/hf/formats/torch_types.h"
#include "strata/hf/fp8.h"
#include "strata/hf/hub/model.h"
#include "strata/hf/int_weight.h"
#include "strata/hf/model_folder.h"
#include "strata/hf/mxfp4.h"
#include "strata/hf/weight_names.h"
#include "strata/models/moe/config.h"
#include "strata/models/reward_head.h"
#include "strata/shard/loading.h"
#include "strata/shard/storage_type.h"
#include "strata/text/templates/changed_files.h"
#include "strata/train/datasets.h"
#include "strata/train/saving/result_pages.h"
#include "strata/train/saving/result_retry.h"
#include "strata/train/setup/adapter_settings.h"
#include "strata/train/setup/hub_place.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

// config.json of the result: the base's, with what training changed.
std::string exported_model_config(const Trainee& trainee, const text::Tokenizer& tokenizer) {
  Json config = trainee.model_config;
  checkpoint::align_special_tokens(tokenizer, /*is_generation=*/false, config);
  config.erase("torch_dtype");
  config["dtype"] = "float32";  // masters; a result says its own
  if (!config.contains("architectures")) {
    config["architectures"] = Json::array({trainee.model->architecture()});
  }
  // It was decoded.
  const bool was_packed = hf::announces_mxfp4(config) || hf::announces_fp8(config);
  if (was_packed || hf::announces_ints(config)) config.erase("quantization_config");
  trainee.model->describe_tie(config);
  if (const auto coefficient = trainee.balancing.coefficient) {
    models::describe_balancing(*coefficient, config);
  }
  return dump_python(config) + "\n";
}

// Beside the files of the model, or of the adapter, that are there.
void add_tokenizer(const config::RunConfig& config, const Datasets& datasets,
                   checkpoint::SmallFiles& files) {
  const bool has_other_template =
      !config.data.chat_template_path.empty() || config.data.chat_template_format != "none";
  const auto model = files.find("config.json");
  const auto changed = text::changed_files(
      *datasets.tokenizer, has_other_template ? datasets.chat_template_source : "",
      model == files.end() ? Json() : parse_json(model->second, "config.json"));
  for (const fs::path& file : datasets.tokenizer->files()) {
    // A tokenizer may read its model's config.json; the result has one of its own.
    if (file.filename() == "config.json") continue;
    const fs::path part = file.parent_path().filename();
    const bool is_below = part == "additional_chat_templates";
    files[is_below ? part / file.filename() : file.filename()] = read_file(file);
  }
  for (const auto& [name, text] : changed) files[name] = text;
}

}  // namespace

std::optional<at::ScalarType> result_type(const config::RunConfig& config, const Trainee& trainee) {
  const std::string name = shard::result_dtype({.save_dtype = config.train.save_dtype,
                                                .dtype = config.model.dtype,
                                                .bf16 = config.shard.bf16,
                                                .fp16 = config.shard.fp16,
                                                .is_adapter = trainee.adapter != nullptr});
  if (name.empty()) return std::nullopt;
  return shard::storage_type_of(name, trainee.model_config);
}

checkpoint::SmallFiles companion_files(const config::RunConfig& config, const Trainee& trainee,
                                       const Datasets& datasets) {
  checkpoint::SmallFiles files;
  if (trainee.adapter) {
    files[hf::kAdapterConfigFile] = hf::adapter_config_json(adapter_config_of(config, trainee));
    if (config::recipe_of(config).reads_labels) {
      files[models::kLabelsFile] = models::labels_json(trainee.model_config);
    }
  } else {
    files["config.json"] = exported_model_config(trainee, *datasets.tokenizer);
    constexpr const char* kGeneration = "generation_config.json";
    const fs::path base =
        hf::locate_model(config.model.model_name_or_path, hub_place(config.model));
    if (!config.model.model_name_or_path.empty() && fs::exists(base / kGeneration)) {
      Json settings = read_json_file(base / kGeneration);
      const Json old = settings;
      checkpoint::align_special_tokens(*datasets.tokenizer, /*is_generation=*/true, settings);
      files[kGeneration] =
          settings == old ? read_file(base / kGeneration) : dump_python(settings) + "\n";
    }
  }
  add_tokenizer(config, datasets, files);
  return files;
}

namespace {

// config.json of a result in another type than that of the masters.
void name_result_type(std::optional<at::ScalarType> type, checkpoint::SmallFiles& files) {
  if (!type || !files.contains("config.json")) return;
  Json config = parse_json(files["config.json"], "config.json");
  config["dtype"] = std::string(hf::torch_dtype_of(shard::dtype_of(*type)));
  files["config.json"] = dump_python(config) + "\n";
}

// Whoever takes them begins anew, also where this run went on from a checkpoint.
std::string settings_from_start(const std::string& text) {
  Json settings = parse_json(text, "settings");
  const auto resumed = settings.find("resume_from_checkpoint");
  if (resumed != settings.end()) *resumed = "";
  return dump_python(settings, /*indent=*/2, /*sort_keys=*/false);
}

// A picture of the run is not worth its result.
void add_page(const char* name, const std::function<std::string()>& page, Trainer& trainer,
              checkpoint::ExportOptions& options) {
  try {
    options.beside[name] = page();
  } catch (const std::exception& error) {
    trainer.say(fmt::format("warning: {}: {}; it is left out", name, error.what()));
  }
}

// Whether the model that training started from has NaN or infinity there itself: rows of tokens
// that nobody writes may hold anything.
bool starts_not_finite(const config::ModelConfig& config, const std::string& name) {
  if (config.model_name_or_path.empty()) return false;
  const hf::ModelFolder base(hf::locate_model(config.model_name_or_path, hub_place(config)));
  if (hf::find_int_weight(base, name) || hf::find_fp8_weight(base, name)) {
    return !checkpoint::is_finite(checkpoint::read_plain(base, name));
  }
  const hf::TensorInfo* tensor = base.find(name);
  if (tensor == nullptr) return false;
  return !checkpoint::is_finite(base.bytes(*tensor), shard::scalar_type_of(tensor->dtype, name));
}

// Nothing that is there may be replaced by a model that answers nothing.
void require_finite(const config::RunConfig& config, const Trainee& trainee, comm::Group& world) {
  comm::all_or_nothing(world, "checking the weights", [&] {
    for (const std::string& name :
         checkpoint::not_finite(checkpoint::local_pieces(*trainee.store, nullptr))) {
      if (starts_not_finite(config.model, name)) continue;
      throw Error(fmt::format(
          "{}: found NaN or infinity in \"{}\" after the last update, expected finite weights; no "
          "result is written: resume from an earlier checkpoint, or lower learning_rate and start "
          "again",
          config.train.output_dir, name));
    }
  });
}

void export_results(const config::RunConfig& config, Trainee& trainee, Trainer& trainer) {
  const fs::path folder = config.train.output_dir;
  // The proof of a large result takes longer than a collective of a step may.
  comm::Group& world = trainer.saver().patient_group();
  require_finite(config, trainee, world);
  const auto type = result_type(config, trainee);
  checkpoint::ExportOptions options{.type = type, .group = &world};
  options.trained =
      trainer.has_learned() ? checkpoint::Trained::kYes : checkpoint::Trained::kNotYet;
  checkpoint::on_disk_of_rank_0(world, "collecting the results", [&] {
    options.beside = trainer.saver().companions();
    name_result_type(type, options.beside);
    options.beside["trainer_state.json"] = report::trainer_state_text(trainer.state());
    options.beside["settings.json"] = settings_from_start(trainer.settings_text());
    add_page(
        kReportFile, [&] { return report_page(config, trainee, trainer); }, trainer, options);
    if (owns_model_card(folder)) {
      add_page(
          kModelCardFile, [&] { return model_card(config, trainee, trainer); }, trainer, options);
    }
  });
  if (trainee.adapter) {
    checkpoint::export_adapter(folder, *trainee.store, *trainee.adapter,
                               adapter_config_of(config, trainee), trainee.base_fingerprint,
                               std::move(options));
  } else {
    checkpoint::export_model(
        folder, *trainee.store, parse_byte_size(config.train.max_shard_size),
        [&](const nn::Parameter& parameter) {
          return hf::name_in_folder(trainee.model_config, parameter.name());
        },
        std::move(options));
  }
}

// Where what was trained is whole on the disk as well, and how to make the result of it; or empty.
std::string way_back(const config::RunConfig& config, const Trainer& trainer) {
  const auto last = trainer.last_checkpoint();
  if (last && !config.train.save_only_model) {
    return fmt::format(
        "; what was trained is complete in {}: repair that, and the same command with "
        "--resume_from_checkpoint true writes the result",
        last->string());
  }
  const fs::path& best = trainer.best_checkpoint();
  const fs::path weights = best.empty() ? last.value_or(fs::path()) : best;
  if (weights.empty()) return "";
  return fmt::format(
      "; the weights are complete in {}: strata convert {} NEW_FOLDER --to safetensors makes a "
      "result of them",
      weights.string(), weights.string());
}

// Of a rank that does not decide. A rank 0 that is gone has failed for another reason.
bool follows(ResultRetry& retry) {
  try {
    return retry.waits("", /*may_wait=*/false);
  } catch (const CommError&) {
    return false;
  }
}

// The run began with the folder: one that is gone is on a disk that is away.
void require_folder(const fs::path& folder) {
  if (fs::is_directory(folder)) return;
  throw IoError("{}: found that this folder is gone, expected the run's", folder.string());
}

}  // namespace

void write_results(const config::RunConfig& config, Trainee& trainee, Trainer& trainer) {
  const fs::path folder = config.train.output_dir;
  comm::Group& world = trainer.saver().patient_group();
  ResultRetry retry(
      world,
      {.obstacle = [&] { return obstacle_to_result(folder, trainer.saver().result_bytes()); },
       .is_told_to_end = [&] { return trainer.is_told_to_end(); },
       .say = [&](const std::string& line) { trainer.say(line); }});
  // What fails on one rank alone ends it: the others may wait for it in the middle of an export.
  for (bool is_written = false; !is_written;) {
    try {
      checkpoint::on_disk_of_rank_0(world, "looking at output_dir",
                                    [&] { require_folder(folder); });
      export_results(config, trainee, trainer);
      is_written = true;
    } catch (const checkpoint::ExportRefused& error) {
      const std::string way = way_back(config, trainer);
      const bool may_wait = way.empty() && may_be_mended(error.what());
      if (!retry.waits(error.what(), may_wait)) throw IoError(error.what() + way);
    } catch (const comm::OtherRankFailed& error) {
      if (error.rank() != 0 || !follows(retry)) throw;
    }
  }
  if (trainee.store->mesh().world->rank() == 0) trainer.saver().remove_all_but_best();
}

}  // namespace strata::train
