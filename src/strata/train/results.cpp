#include "strata/train/results.h"

#include "strata/base/byte_size.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/checkpoint/export.h"
#include "strata/checkpoint/special_tokens.h"
#include "strata/comm/agreement.h"
#include "strata/config/recipes.h"
#include "strata/hf/hub_model.h"
#include "strata/hf/mxfp4.h"
#include "strata/hf/torch_types.h"
#include "strata/models/moe/config.h"
#include "strata/report/html_report.h"
#include "strata/shard/loading.h"
#include "strata/shard/storage_type.h"
#include "strata/text/changed_files.h"
#include "strata/train/adapter_settings.h"
#include "strata/train/checkpointing_choice.h"
#include "strata/train/datasets.h"
#include "strata/train/hub_place.h"

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
  if (hf::announces_mxfp4(config)) config.erase("quantization_config");  // it was decoded
  trainee.model->describe_tie(config);
  if (const auto coefficient = trainee.balancing.coefficient) {
    models::describe_balancing(*coefficient, config);
  }
  return dump_python(config) + "\n";
}

void add_tokenizer(const config::RunConfig& config, const Datasets& datasets,
                   checkpoint::SmallFiles& files) {
  const bool has_other_template =
      !config.data.chat_template_path.empty() || config.data.chat_template_format != "none";
  const auto changed = text::changed_files(*datasets.tokenizer,
                                           has_other_template ? datasets.chat_template_source : "");
  for (const fs::path& file : datasets.tokenizer->files()) {
    // A tokenizer may read its model's config.json; the result has one of its own.
    if (file.filename() == "config.json") continue;
    const fs::path part = file.parent_path().filename();
    const bool is_below = part == "additional_chat_templates";
    files[is_below ? part / file.filename() : file.filename()] = read_file(file);
  }
  for (const auto& [name, text] : changed) files[name] = text;
}

std::vector<std::pair<std::string, std::string>> shown_settings(const config::RunConfig& config,
                                                                int world_size) {
  std::vector<std::pair<std::string, std::string>> shown{
      {"model", config.model.model_name_or_path.empty() ? config.model.config_name
                                                        : config.model.model_name_or_path},
      {"data set", data_name(config.data)},
      {"ranks", std::to_string(world_size)},
      {"sharding_strategy", config.shard.sharding_strategy},
      {"gradient_checkpointing", checkpointing_text(config.shard)},
      {"per_device_train_batch_size", std::to_string(config.train.per_device_train_batch_size)},
      {"gradient_accumulation_steps", std::to_string(config.train.gradient_accumulation_steps)},
      {"learning_rate", python_float_repr(config.optim.learning_rate)},
      {"lr_scheduler_type", config.optim.lr_scheduler_type},
      {"seed", std::to_string(config.train.seed)}};
  if (const int64_t sharers = config.shard.sequence_parallel_size; sharers > 1) {
    shown.insert(shown.begin() + 3, {"sequence_parallel_size", std::to_string(sharers)});
  }
  const config::RecipeRow& recipe = config::recipe_of(config);
  if (recipe.has_encoder) {
    shown.push_back({"max_source_length", std::to_string(config.data.max_source_length)});
    shown.push_back({"max_target_length", std::to_string(config.data.max_target_length)});
  } else {
    const auto& length = config.data.max_length;
    shown.push_back({"max_length", length ? std::to_string(*length) : "none"});
  }
  if (recipe.command == "dpo") {
    const auto& losses = config.preference.loss_type;
    shown.push_back(
        {"loss_type", losses.empty() ? "sigmoid" : fmt::format("{}", fmt::join(losses, " "))});
    shown.push_back({"beta", python_float_repr(config.preference.beta)});
  } else if (recipe.command == "sft") {
    shown.push_back({"packing", config.data.packing ? config.data.packing_strategy : "false"});
  }
  return shown;
}

// As in the adapter's file: a continued one has settings of its own.
void show_adapter(const hf::AdapterConfig& adapter, report::ReportData& data) {
  const auto show = [&data](const char* name, const std::string& value) {
    if (!value.empty()) data.settings.push_back({name, value});
  };
  show("peft_type", adapter.peft_type);
  if (adapter.peft_type.ends_with("_TUNING")) {
    return show("num_virtual_tokens", std::to_string(adapter.num_virtual_tokens));
  }
  if (adapter.peft_type != "IA3") show("lora_r", std::to_string(adapter.r));
  if (adapter.peft_type == "LORA") show("lora_alpha", python_float_repr(adapter.lora_alpha));
  show("lora_target_parameters", fmt::format("{}", fmt::join(adapter.target_parameters, ", ")));
  show("lora_target_modules", adapter.target_modules_regex.value_or(
                                  fmt::format("{}", fmt::join(adapter.target_modules, ", "))));
}

std::string report_page(const config::RunConfig& config, const Trainee& trainee,
                        const Trainer& trainer) {
  const int ranks = trainee.store->mesh().world->size();
  const config::RecipeRow& recipe = config::recipe_of(config);
  report::ReportData data;
  data.title = fs::path(config.train.output_dir).filename().string();
  std::string method = "full fine-tuning";
  data.settings = shown_settings(config, ranks);
  if (trainee.adapter) {
    const hf::AdapterConfig adapter = adapter_config_of(config, trainee);
    method = adapter.use_dora ? "DoRA" : adapter.peft_type == "LORA" ? "LoRA" : adapter.peft_type;
    show_adapter(adapter, data);
  }
  if (!recipe.label.empty()) method += fmt::format(", {}", recipe.label);
  data.subtitle = fmt::format("{} on {}, {} rank{}", method,
                              fs::path(data_name(config.data)).filename().string(), ranks,
                              ranks == 1 ? "" : "s");
  data.rows = trainer.metrics_rows();
  return report::loss_curve_page(data);
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

void export_results(const config::RunConfig& config, Trainee& trainee, Trainer& trainer) {
  const fs::path folder = config.train.output_dir;
  // The proof of a large result takes longer than a collective of a step may.
  comm::Group& world = trainer.patient_group();
  const auto type = result_type(config, trainee);
  checkpoint::ExportOptions options{.type = type, .group = &world};
  options.trained =
      trainer.has_learned() ? checkpoint::Trained::kYes : checkpoint::Trained::kNotYet;
  comm::all_or_nothing(world, "collecting the results", [&] {
    if (world.rank() != 0) return;
    options.beside = trainer.companions();
    name_result_type(type, options.beside);
    options.beside["trainer_state.json"] = report::trainer_state_text(trainer.state());
    try {
      options.beside["report.html"] = report_page(config, trainee, trainer);
    } catch (const std::exception& error) {  // a picture of the run is not worth its result
      trainer.say(fmt::format("warning: report.html: {}; it is left out", error.what()));
    }
  });
  if (trainee.adapter) {
    checkpoint::export_adapter(folder, *trainee.store, *trainee.adapter,
                               adapter_config_of(config, trainee), trainee.base_fingerprint,
                               std::move(options));
  } else {
    checkpoint::export_model(
        folder, *trainee.store, parse_byte_size(config.train.max_shard_size),
        [](const nn::Parameter& parameter) { return parameter.name(); }, std::move(options));
  }
}

}  // namespace

void write_results(const config::RunConfig& config, Trainee& trainee, Trainer& trainer) {
  try {
    export_results(config, trainee, trainer);
  } catch (const IoError& error) {
    const auto last = trainer.last_checkpoint();
    if (!last || config.train.save_only_model) throw;
    throw IoError(
        "{}; what was trained is whole in {}: mend that, and the same command with "
        "--resume_from_checkpoint true writes the result",
        error.what(), last->string());
  }
  if (trainee.store->mesh().world->rank() == 0) trainer.remove_all_but_best();
}

}  // namespace strata::train
