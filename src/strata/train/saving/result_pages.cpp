#include "strata/train/saving/result_pages.h"

#include <algorithm>
#include <cctype>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/config/recipes.h"
#include "strata/data/files/split_spec.h"
#include "strata/hf/hub/cache.h"
#include "strata/report/figures.h"
#include "strata/report/html_report.h"
#include "strata/report/model_card.h"
#include "strata/train/datasets.h"
#include "strata/train/planning/checkpointing_choice.h"
#include "strata/train/setup/adapter_settings.h"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

using ShownSettings = std::vector<std::pair<std::string, std::string>>;

// Shows the settings that the loss uses.
void show_cpo(const config::PreferenceConfig& preference, ShownSettings& shown) {
  const std::string loss = preference.loss_type.empty() ? "sigmoid" : preference.loss_type.front();
  const bool wins_by_margin = loss == "simpo" || loss == "alphapo";
  shown.push_back({"loss_type", loss});
  shown.push_back({"beta", python_float_repr(preference.beta)});
  if (loss != "alphapo") shown.push_back({"cpo_alpha", python_float_repr(preference.cpo_alpha)});
  if (wins_by_margin) shown.push_back({"simpo_gamma", python_float_repr(preference.simpo_gamma)});
  if (preference.alpha != 0) shown.push_back({"alpha", python_float_repr(preference.alpha)});
  if (preference.label_smoothing != 0 && (wins_by_margin || loss == "sigmoid")) {
    shown.push_back({"label_smoothing", python_float_repr(preference.label_smoothing)});
  }
}

// `max_length`: at which rows ended, which may be less than was asked for.
ShownSettings shown_settings(const config::RunConfig& config, int world_size, int64_t max_length) {
  ShownSettings shown{
      {"model", config.model.model_name_or_path.empty() ? config.model.config_name
                                                        : config.model.model_name_or_path},
      {"data set", data_name(config.data)},
      {"ranks", std::to_string(world_size)},
      {"sharding_strategy", fmt::format("{}", config.shard.sharding_strategy)},
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
    shown.push_back({"max_length", max_length > 0 ? std::to_string(max_length) : "none"});
  }
  if (recipe.command == "dpo") {
    const auto& losses = config.preference.loss_type;
    shown.push_back(
        {"loss_type", losses.empty() ? "sigmoid" : fmt::format("{}", fmt::join(losses, " "))});
    shown.push_back({"beta", python_float_repr(config.preference.beta)});
  } else if (recipe.command == "orpo") {
    shown.push_back({"beta", python_float_repr(config.preference.beta)});
  } else if (recipe.command == "cpo") {
    show_cpo(config.preference, shown);
  } else if (recipe.reads_ratings) {
    const auto& losses = config.preference.loss_type;
    shown.push_back({"loss_type", losses.empty() ? "kto" : losses.front()});
    shown.push_back({"beta", python_float_repr(config.preference.beta)});
    shown.push_back({"desirable_weight", python_float_repr(config.preference.desirable_weight)});
    shown.push_back(
        {"undesirable_weight", python_float_repr(config.preference.undesirable_weight)});
  } else if (recipe.command == "sft") {
    shown.push_back({"packing", config.data.packing ? config.data.packing_strategy : "false"});
  }
  return shown;
}

// As in the adapter's file: a continued one has settings of its own.
void show_adapter(const hf::AdapterConfig& adapter, ShownSettings& settings) {
  const auto show = [&settings](const char* name, const std::string& value) {
    if (!value.empty()) settings.push_back({name, value});
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

// What page and card have in common.
struct Story {
  std::string title;
  std::string method;  // "LoRA", "DoRA, DPO"
  std::string base;    // as named by whoever started the run
  ShownSettings settings;
  int ranks = 1;
};

Story story_of(const config::RunConfig& config, const Trainee& trainee, const Trainer& trainer) {
  Story story;
  story.ranks = trainee.store->mesh().world->size();
  story.title = (fs::path(config.train.output_dir) / "").parent_path().filename().string();
  story.method = "full fine-tuning";
  story.base = config.model.model_name_or_path;
  story.settings = shown_settings(config, story.ranks, trainer.max_length());
  if (trainee.adapter) {
    const hf::AdapterConfig adapter = adapter_config_of(config, trainee);
    story.method = adapter.use_dora              ? "DoRA"
                   : adapter.peft_type == "LORA" ? "LoRA"
                                                 : adapter.peft_type;
    show_adapter(adapter, story.settings);
  }
  const std::string_view label = config::recipe_of(config).label;
  if (!label.empty()) story.method += fmt::format(", {}", label);
  return story;
}

bool is_on_hub(const std::string& name) {
  std::error_code ignored;
  return hf::is_hub_name(name) && !fs::exists(name, ignored);
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::vector<std::string> tags_of(const config::RunConfig& config, const Trainee& trainee) {
  std::vector<std::string> tags;
  if (trainee.adapter) {
    const std::string& base = config.model.model_name_or_path;
    if (is_on_hub(base)) tags.push_back("base_model:adapter:" + base);
    tags.push_back(lower(adapter_config_of(config, trainee).peft_type));
  }
  tags.emplace_back(config::recipe_of(config).command);
  tags.emplace_back("strata");
  return tags;
}

}  // namespace

std::string report_page(const config::RunConfig& config, const Trainee& trainee,
                        const Trainer& trainer) {
  Story story = story_of(config, trainee, trainer);
  report::ReportData data;
  data.title = std::move(story.title);
  data.subtitle = fmt::format("{} on {}, {} rank{}", story.method,
                              fs::path(data_name(config.data)).filename().string(), story.ranks,
                              story.ranks == 1 ? "" : "s");
  data.settings = std::move(story.settings);
  data.rows = trainer.metrics_rows();
  return report::loss_curve_page(data);
}

std::string model_card(const config::RunConfig& config, const Trainee& trainee,
                       const Trainer& trainer) {
  Story story = story_of(config, trainee, trainer);
  report::ModelCard card;
  card.title = std::move(story.title);
  card.summary =
      fmt::format("{} {} ({}), trained on {}.", trainee.adapter ? "An adapter for" : "From",
                  story.base.empty() ? config.model.config_name : story.base, story.method,
                  data_name(config.data));
  if (is_on_hub(story.base)) card.base_model = story.base;
  for (const std::string& name : data::split_list(data_name(config.data))) {
    if (is_on_hub(name)) card.datasets.push_back(name);
  }
  card.library = trainee.adapter ? "peft" : "transformers";
  card.tags = tags_of(config, trainee);
  card.settings = std::move(story.settings);
  card.rows = trainer.metrics_rows();
  std::erase_if(card.rows, [&](const Json& row) {
    return report::number_at(row, "step").value_or(0) > static_cast<double>(trainer.result_step());
  });
  card.command = fmt::format("strata launch --num_processes {} {} --config settings.json",
                             story.ranks, config::recipe_of(config).command);
  return report::model_card_text(card);
}

bool owns_model_card(const fs::path& folder) {
  const fs::path path = folder / kModelCardFile;
  std::error_code missing;
  if (!fs::exists(fs::symlink_status(path, missing))) return true;
  try {
    return report::is_model_card(read_file(path));
  } catch (const IoError&) {  // whatever it is, it is not ours
    return false;
  }
}

}  // namespace strata::train
