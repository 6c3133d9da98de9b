// The order of all groups of rules, and those of the optimizer, steps, data and launch. Never:
// rules of recipes, adapters, sharding and saving (*_checks.h).
#include "strata/config/checks/checks.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/ranges.h>

#include "strata/base/byte_size.h"
#include "strata/base/error.h"
#include "strata/base/json.h"
#include "strata/config/checks/adapter_checks.h"
#include "strata/config/checks/recipe_checks.h"
#include "strata/config/checks/reporting_checks.h"
#include "strata/config/checks/rules.h"
#include "strata/config/checks/saving_checks.h"
#include "strata/config/checks/sharding_checks.h"
#include "strata/config/device_ids.h"
#include "strata/config/field_text.h"
#include "strata/config/optim_args.h"

namespace strata::config {
namespace {

class CommonRules : Rules {
 public:
  using Rules::Rules;

  void check() {
    warn_of_unbound();
    check_recipe(config_, merge_, warnings_);
    check_adapter(config_, merge_, warnings_);
    check_optimizer();
    check_loss();
    check_steps();
    check_data();
    check_sharding(config_, merge_, warnings_);
    check_launch();
  }

 private:
  // Flags always; in files and the environment, which programs fill, only what differs from the
  // values listed as asking for nothing.
  void warn_of_unbound() {
    for (const auto& [name, found] : merge_.all()) {
      const Setting& setting = *found.setting;
      if (setting.kind != Kind::kUnbound) continue;
      const std::string text = canonical_text(found);
      const bool is_plain =
          std::ranges::find(setting.harmless, std::string_view(text)) != setting.harmless.end();
      const bool is_flag = found.origin.rank >= Rank::kLaunchFlag;
      if ((is_plain && !is_flag) || is_done_anyway(name, text)) continue;
      warnings_.push_back(
          fmt::format("{}: has no effect here; {}", named_source(found), setting.help));
    }
  }

  // The run does what the setting asks for.
  bool is_done_anyway(std::string_view name, std::string_view text) const {
    return text == "true" && name == "do_train";
  }

  void check_optimizer() {
    const OptimConfig& optim = config_.optim;
    if (optim.warmup_steps > 0 && optim.warmup_ratio > 0) {
      throw ConfigError("{}: found {} with {} {}, expected one kind of warm-up; remove one",
                        source("warmup_ratio"), optim.warmup_ratio, source("warmup_steps"),
                        optim.warmup_steps);
    }
    check_update_rule();
    check_warmup();
    if (optim.lr_scheduler_kwargs.empty()) return;
    const std::string subject = source("lr_scheduler_kwargs");
    Json kwargs;
    try {
      kwargs = parse_json(optim.lr_scheduler_kwargs, subject);
    } catch (const FormatError& error) {
      throw ConfigError(error.what());
    }
    if (!kwargs.is_object()) {
      throw ConfigError("{}: found {}, expected a JSON object like {{\"num_cycles\": 2}}", subject,
                        optim.lr_scheduler_kwargs);
    }
  }

  void check_update_rule() {
    const std::string& name = config_.optim.optim;
    const std::string& args = config_.optim.optim_args;
    if (name == "sgd") {
      (void)parse_sgd_args(args, source("optim_args"));
    } else if (!args.empty() && args != "none" && args != "None") {
      throw ConfigError("{}: found \"{}\" with optim {}, expected optim sgd; remove it",
                        source("optim_args"), args, name);
    }
    const bool has_no_moments = name == "sgd" || name == "adafactor";
    const std::string reason = "optim is " + name;
    if (has_no_moments) {
      warn_without_effect("adam_beta1", reason);
      warn_without_effect("adam_beta2", reason);
    }
    if (has_no_moments || name.find("lion") != std::string::npos) {
      warn_without_effect("adam_epsilon", reason);
    }
  }

  void check_warmup() {
    const std::string& type = config_.optim.lr_scheduler_type;
    static constexpr std::array kWithout = {"constant", "reduce_lr_on_plateau", "greedy",
                                            "OneCycle", "LRRangeTest"};
    if (std::ranges::find(kWithout, type) == kWithout.end()) return;
    const std::string reason =
        "lr_scheduler_type is " + type +
        (type == "constant" ? ", which has no warm-up; constant_with_warmup has one"
                            : ", which has no warm-up");
    warn_without_effect("warmup_steps", reason);
    warn_without_effect("warmup_ratio", reason);
  }

  void check_loss() {
    if (config_.train.label_smoothing_factor > 0 && config_.model.router_aux_loss_coef != 0.0) {
      warn_without_effect("router_aux_loss_coef",
                          "with label_smoothing_factor, TRL's trainer does not add that loss");
    }
  }

  void check_interval(const std::string& strategy, const std::string& name, double steps) {
    const std::string choice = merge_.text(strategy, field_text(get_setting(strategy), config_));
    if (choice != "steps") {
      return warn_without_effect(name, strategy + " is " + choice);
    }
    if (steps > 0 && (steps < 1 || steps == static_cast<double>(static_cast<int64_t>(steps)))) {
      return;
    }
    throw ConfigError("{}: found {}, expected a whole number of updates, or a fraction below 1",
                      source(name), steps);
  }

  void check_steps() {
    const TrainConfig& train = config_.train;
    if (train.max_steps == 0 || train.max_steps < -1) {
      throw ConfigError("{}: found {}, expected at least 1, or -1 for num_train_epochs",
                        source("max_steps"), train.max_steps);
    }
    if (train.max_steps > 0) {
      warn_without_effect("num_train_epochs", "max_steps decides");
    } else if (!(train.num_train_epochs > 0)) {
      throw ConfigError("{}: found {}, expected more than 0", source("num_train_epochs"),
                        train.num_train_epochs);
    }
    check_interval("logging_strategy", "logging_steps", train.logging_steps);
    check_interval("save_strategy", "save_steps", train.save_steps);
    check_interval("eval_strategy", "eval_steps", train.eval_steps.value_or(1));
    if (train.output_dir.empty()) {
      throw ConfigError("{}: found nothing, expected a folder for the results; name one",
                        source("output_dir"));
    }
    check_saving(config_, merge_, warnings_);
    check_reporting(config_, merge_, warnings_);
    if (config_.lora.use_peft) warn_without_effect("max_shard_size", "an adapter is one file");
    try {
      parse_byte_size(train.max_shard_size);
    } catch (const ConfigError&) {
      throw ConfigError("{}: found \"{}\", expected a size like 50GB, 200MB or 1000000",
                        source("max_shard_size"), train.max_shard_size);
    }
  }

  void check_data() {
    const DataConfig& data = config_.data;
    const bool has_test =
        data.splits.find(',') != std::string::npos || !data.validation_file.empty();
    if (data.splits.empty() || data.splits.front() == ',') {
      throw ConfigError("{}: found \"{}\", expected the name of the train split first",
                        source("splits"), data.splits);
    }
    if (!has_test &&
        (config_.train.eval_strategy != Interval::kNo || config_.train.eval_on_start)) {
      throw ConfigError(
          "{}: found an evaluation without a test split in splits ({}), expected "
          "two names; write splits as train,test or set eval_strategy no",
          source(config_.train.eval_on_start ? "eval_on_start" : "eval_strategy"), data.splits);
    }
    if (data.chat_template_format != "none" && !data.chat_template_path.empty()) {
      throw ConfigError("{}: found {} with {} {}, expected one template; remove one",
                        source("chat_template_format"), data.chat_template_format,
                        source("chat_template_path"), data.chat_template_path);
    }
    check_length();
    if (data.packing && data.packing_strategy != "bfd" && data.long_rows != "drop") {
      warn_without_effect("long_rows", "packing_strategy " + data.packing_strategy + " decides");
    }
    for (const std::string& column : data.dataset_columns) {
      const size_t equals = column.find('=');
      if (equals != std::string::npos && equals > 0 && equals + 1 < column.size()) continue;
      throw ConfigError("{}: found \"{}\", expected COLUMN=NAME, like messages=dialog",
                        source("dataset_columns"), column);
    }
    check_weights();
    if (data.dataset_streaming) {
      warn_without_effect("train_sampling_strategy", "dataset_streaming keeps the files' order");
      warn_without_effect("data_seed", "dataset_streaming keeps the files' order");
      if (config_.train.auto_find_batch_size) {
        throw ConfigError(
            "{}: found true with dataset_streaming ({}), which reads as many rows as the steps of "
            "the batch size need, expected one of them; remove one",
            source("auto_find_batch_size"), source("dataset_streaming"));
      }
    }
    if (!data.dataset_streaming && config_.train.train_sampling_strategy == Sampling::kSequential) {
      warn_without_effect("data_seed", "train_sampling_strategy sequential keeps the rows' order");
    }
    if (!data.packing && !data.eval_packing.value_or(false)) {
      warn_without_effect("packing_strategy", "packing is off");
    }
  }

  void check_length() {
    const DataConfig& data = config_.data;
    if (data.max_length) return;
    const bool packs_test = data.eval_packing.value_or(false);
    if (data.packing || packs_test) {
      throw ConfigError(
          "{}: found none with {}, expected the length of a packed row; set it, or turn packing "
          "off",
          source("max_length"), source(data.packing ? "packing" : "eval_packing"));
    }
    warn_without_effect("long_rows", "max_length is none, so no row is too long");
  }

  void check_weights() {
    const DataConfig& data = config_.data;
    if (data.dataset_weights.empty()) return;
    const auto num_sets = static_cast<size_t>(std::ranges::count(data.dataset_name, ',')) + 1;
    const bool fits = data.dataset_weights.size() == num_sets &&
                      std::ranges::all_of(data.dataset_weights, [](const std::string& text) {
                        char* end = nullptr;
                        const double weight = std::strtod(text.c_str(), &end);
                        return end == text.c_str() + text.size() && weight > 0 && weight < 1e9;
                      });
    if (fits) return;
    throw ConfigError("{}: found {}, expected {} positive number{}, one for each data set of {}",
                      source("dataset_weights"), fmt::join(data.dataset_weights, " "), num_sets,
                      num_sets == 1 ? "" : "s", data.dataset_name);
  }

  // DeepSpeed's num_gpus counts those of each machine.
  void refuse_ranks_of_a_machine() const {
    const LaunchConfig& launch = config_.launch;
    const Given* found = given("num_processes");
    if (launch.num_machines == 1 || !found) return;
    const std::string& place = found->origin.source;
    if (!place.ends_with("num_gpus") && !place.ends_with("(num_gpus)")) return;
    throw ConfigError(
        "{}: found {} with {} machines, expected num_processes, which counts the ranks of all "
        "machines together; write num_processes {}",
        place, launch.num_processes, launch.num_machines,
        launch.num_processes * launch.num_machines);
  }

  void check_launch() {
    const LaunchConfig& launch = config_.launch;
    if (launch.machine_rank >= launch.num_machines) {
      throw ConfigError("{}: found {}, expected less than num_machines ({})",
                        source("machine_rank"), launch.machine_rank, launch.num_machines);
    }
    if (launch.num_machines > 1 && launch.num_processes % launch.num_machines != 0) {
      throw ConfigError("{}: found {}, expected a multiple of num_machines ({})",
                        source("num_processes"), launch.num_processes, launch.num_machines);
    }
    refuse_ranks_of_a_machine();
    if (launch.log_dir.empty() && !launch.tee.empty()) {
      warn_without_effect("tee", "without log_dir all output is shown");
    }
    count_device_ids(launch.gpu_ids, source("gpu_ids"));
    if (launch.cpu && !launch.gpu_ids.empty()) {
      warn_without_effect("gpu_ids", "ranks compute on CPUs (use_cpu)");
    }
  }
};

}  // namespace

void check_settings(const RunConfig& config, const Merge& merge,
                    std::vector<std::string>& warnings) {
  CommonRules(config, merge, warnings).check();
}

}  // namespace strata::config
