#include "strata/config/checks/recipe_checks.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>

#include "strata/base/error.h"
#include "strata/config/checks/loss_names.h"
#include "strata/config/checks/preference_checks.h"
#include "strata/config/checks/rated_checks.h"
#include "strata/config/checks/reference_free_checks.h"
#include "strata/config/checks/rules.h"
#include "strata/config/field_text.h"
#include "strata/config/glue_tasks.h"
#include "strata/config/recipes.h"

namespace strata::config {
namespace {

bool has(const RecipeRow& recipe, std::string_view name) {
  return std::ranges::find(recipe.settings, name) != recipe.settings.end();
}

class RecipeRules : Rules {
 public:
  using Rules::Rules;

  void check() {
    refuse_others();
    check_task();
    if (recipe_.command == "dpo") check_preferences(config_, merge_, warnings_);
    if (recipe_.command == "orpo" || recipe_.command == "cpo") {
      check_reference_free(config_, merge_, warnings_);
    }
    if (recipe_.reads_ratings) check_rated(config_, merge_, warnings_);
    if (recipe_.gives_rewards) check_rewards();
    if (recipe_.judges_documents()) check_head();
    if (recipe_.reads_labels) check_labels();
    check_files();
    if (!recipe_.has_encoder) return;
    check_columns();
    check_answers();
  }

 private:
  // Settings of the other recipes would be ignored.
  void refuse_others() {
    std::set<std::string_view> looked_at;
    for (const RecipeRow& other : recipes()) {
      for (const std::string_view name : other.settings) {
        const Given* found = given(std::string(name));
        // Two recipes may share a name.
        if (found == nullptr || has(recipe_, name) || !looked_at.insert(name).second) continue;
        if (is_plain(*found)) continue;
        if (recipe_.command == "sft") require_own_value(*found);
        if (recipe_.reads_labels) refuse_other_columns(*found);
        const std::string_view recipe = recipe_meant(*found, other.command);
        throw ConfigError(
            "{}: found with the recipe {}, expected a setting of it; remove it, or run strata "
            "{}{}{}",
            named_source(*found), recipe_.command, recipe, in_a_file(*found, recipe),
            name == "alpha" ? "; that of LoRA is lora_alpha" : "");
      }
    }
  }

  // Several recipes may have the setting, not all with this value.
  static std::string_view recipe_meant(const Given& found, std::string_view first) {
    if (found.setting->name != "loss_type") return first;
    const std::string text = canonical_text(found);
    const std::string_view recipe = recipe_with_loss(text.substr(0, text.find_first_of(", ")));
    return recipe.empty() ? first : recipe;
  }

  // `strata config check FILE` knows the recipe from the file alone.
  static std::string in_a_file(const Given& found, std::string_view command) {
    if (found.origin.rank != Rank::kFile) return "";
    return fmt::format(" (a file says so with recipe: {})", command);
  }

  // Two names that TRL's supervised trainer has as well, with values of its own.
  static void require_own_value(const Given& found) {
    const std::string_view name = found.setting->name;
    if (name != "loss_type" && name != "truncation_mode") return;
    const std::string_view recipe = recipe_meant(found, "dpo");
    throw ConfigError(
        "{}: found {} with the recipe sft, expected {}; remove it{}", named_source(found),
        canonical_text(found), name == "loss_type" ? "nll" : "keep_start",
        name == "loss_type" ? fmt::format(", or run strata {}, which has such losses{}", recipe,
                                          in_a_file(found, recipe))
                            : "");
  }

  // Names of columns that another recipe has: "label_column" is its target.
  static void refuse_other_columns(const Given& found) {
    const std::string_view name = found.setting->name;
    if (name != "text_column" && name != "summary_column") return;
    const bool is_text = name == "text_column";
    throw ConfigError(
        "{}: found with the recipe classify, expected {} for the column with {}; use that name",
        named_source(found), is_text ? "text_column_names" : "label_column_name",
        is_text ? "the text" : "the label");
  }

  // Whether the value is the one that holds where nobody gives the setting.
  bool is_plain(const Given& found) {
    if (found.setting->kind != Kind::kBound) return false;
    const std::string text = canonical_text(found);
    if (text == field_text(*found.setting, RunConfig{})) return true;
    if (found.setting->name != "loss_type") return false;
    if (text != "nll" && text != "chunked_nll") return false;
    warn_without_effect("loss_type", "it is this recipe's loss");
    return true;
  }

  void check_task() const {
    std::string task = merge_.text("lora_task_type");
    std::ranges::transform(task, task.begin(), [](unsigned char c) { return std::toupper(c); });
    if (task.empty() || task == recipe_.task_type) return;
    std::string expected(recipe_.task_type);
    std::ranges::transform(expected, expected.begin(),
                           [](unsigned char c) { return std::tolower(c); });
    throw ConfigError("{}: found {} with the recipe {}, expected {}; remove it",
                      source("lora_task_type"), merge_.text("lora_task_type"), recipe_.command,
                      expected);
  }

  void check_rewards() const {
    if (config_.data.long_rows != "drop") {
      throw ConfigError(
          "{}: found {} with the recipe reward, expected drop: a part of a text would get the "
          "reward of the whole; remove it",
          source("long_rows"), config_.data.long_rows);
    }
  }

  void check_head() const {
    const LoraConfig& lora = config_.lora;
    if (!lora.use_peft || !is_tuning_of_tokens(lora.peft_type)) return;
    throw ConfigError(
        "{}: found {} with the recipe {}, expected a method that trains the new head, too; use "
        "LORA",
        source("peft_type"), lora.peft_type, recipe_.command);
  }

  void check_labels() const {
    const ClassifyConfig& classify = config_.classify;
    if (config_.data.long_rows == "split") {
      throw ConfigError(
          "{}: found split with the recipe classify, expected truncate or drop: a part of a text "
          "need not have the label of the whole; change it",
          source("long_rows"));
    }
    const bool is_number = classify.do_regression.value_or(false);
    const GlueTask* task = find_glue_task(classify.task_name);
    if (task != nullptr && classify.do_regression && task->tells_number != is_number) {
      throw ConfigError("{}: found {} with {} {}, expected {} for its {}; remove it",
                        source("do_regression"), is_number, source("task_name"), task->name,
                        !is_number, is_number ? "classes" : "numbers");
    }
    if (is_number && classify.num_labels.value_or(1) != 1) {
      throw ConfigError("{}: found {} with {} true, expected 1 number per text; remove it",
                        source("num_labels"), *classify.num_labels, source("do_regression"));
    }
    if (is_number && config_.train.label_smoothing_factor > 0) {
      throw ConfigError("{}: found {} with {} true, expected it only with classes; remove it",
                        source("label_smoothing_factor"), config_.train.label_smoothing_factor,
                        source("do_regression"));
    }
  }

  void check_columns() {
    const bool has_source = !config_.data.source_lang.empty();
    if (has_source != !config_.data.target_lang.empty()) {
      throw ConfigError("{}: found without {}, expected both languages; add the other",
                        source(has_source ? "source_lang" : "target_lang"),
                        has_source ? "target_lang" : "source_lang");
    }
    if (has_source && !config_.data.lang.empty()) {
      throw ConfigError("{}: found with {}, expected one or the other; remove it", source("lang"),
                        source("source_lang"));
    }
    for (const char* name : {"text_column", "summary_column"}) {
      if (has_source) warn_without_effect(name, "source_lang names the texts");
    }
  }

  bool evaluates() const {
    return config_.train.eval_strategy != Interval::kNo || config_.train.eval_on_start;
  }

  void check_files() {
    const Given* file = given("train_file");
    const Given* set = given("dataset_name");
    const DataConfig& data = config_.data;
    if (file && set && !data.train_file.empty() && !data.dataset_name.empty()) {
      throw ConfigError("{}: found with {}, expected one way to name the data; remove one",
                        named_source(*file), named_source(*set));
    }
    if (!data.validation_file.empty() && data.train_file.empty()) {
      throw ConfigError("{}: found without train_file, expected both; add --train_file",
                        source("validation_file"));
    }
    if (data.train_file.empty()) return;
    if (data.splits.find_first_of("[+") != std::string::npos) {
      throw ConfigError(
          "{}: found {} with train_file ({}), which is read whole, expected dataset_name for a "
          "slice; name the file in dataset_name",
          source("splits"), data.splits, source("train_file"));
    }
    warn_without_effect("splits", "train_file and validation_file name the data");
    if (!evaluates() || !data.validation_file.empty()) return;
    throw ConfigError(
        "{}: found an evaluation without a file for it, expected one; add --validation_file or "
        "set eval_strategy no",
        source(config_.train.eval_on_start ? "eval_on_start" : "eval_strategy"));
  }

  void check_answers() {
    if (!evaluates()) warn_without_effect("predict_with_generate", "eval_strategy is no");
    if (!config_.train.predict_with_generate) {
      warn_without_effect("generation_max_length", "predict_with_generate is off");
      warn_without_effect("generation_num_beams", "predict_with_generate is off");
    }
  }

  const RecipeRow& recipe_ = recipe_of(config_);
};

}  // namespace

void check_recipe(const RunConfig& config, const Merge& merge, std::vector<std::string>& warnings) {
  RecipeRules(config, merge, warnings).check();
}

}  // namespace strata::config
