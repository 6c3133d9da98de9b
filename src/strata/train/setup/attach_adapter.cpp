#include "strata/train/setup/attach_adapter.h"

#include <algorithm>
#include <string>

#include "strata/adapters/adapter_options.h"
#include "strata/adapters/expert_targets.h"
#include "strata/adapters/named_modules.h"
#include "strata/base/error.h"
#include "strata/checkpoint/import.h"
#include "strata/config/recipes.h"
#include "strata/models/reward_head.h"
#include "strata/train/setup/adapter_settings.h"
#include "strata/train/setup/base_quantization.h"
#include "strata/train/setup/named_folders.h"

namespace strata::train {
namespace {

// What the file of a prefix that was projected lacks.
void require_trainable(const hf::AdapterConfig& config) {
  if (!config.prefix_projection) return;
  throw ConfigError(
      "adapter_name_or_path: found prefix_projection true, of which the file holds the result "
      "alone, expected a prefix that was trained itself; use it for answers (strata chat), resume "
      "a checkpoint of its run, or train another");
}

// A head that nobody trained would judge at random.
void require_adapter_of(const config::RunConfig& config, const hf::AdapterConfig& adapter) {
  const bool has_head =
      std::ranges::count(adapter.modules_to_save, std::string(models::kRewardLayer)) > 0;
  const bool wants_head = config::recipe_of(config).judges_documents();
  if (has_head == wants_head) return;
  throw ConfigError(
      "adapter_name_or_path: found an adapter {} a layer of rewards or labels (score in "
      "modules_to_save) for the recipe {}, expected one {} it; {}",
      has_head ? "with" : "without", config.recipe, wants_head ? "with" : "without",
      wants_head ? "fold it into its base (strata merge-adapter) and start from that"
                 : "run strata reward or classify instead");
}

// PEFT's file of a base without a pooler has none either: it would begin anew once more.
void require_whole_head(const adapters::LoraOptions& options, models::Model& model) {
  const std::vector<std::string> lost = unsaved_new_layers(options, model);
  if (lost.empty()) return;
  throw ConfigError(
      "adapter_name_or_path: found an adapter without \"{}\", which its base lacks, too, expected "
      "one that was saved with it (modules_to_save); train another adapter, or name a base that "
      "has it",
      lost[0]);
}

}  // namespace

void attach_adapter(const config::RunConfig& config, const std::vector<int64_t>& new_tokens,
                    const Target& target, Trainee& trainee) {
  if (!config.model.adapter_name_or_path.empty()) {
    require_adapter_folder(config.model.adapter_name_or_path);
    trainee.continued_adapter = hf::read_adapter_config(config.model.adapter_name_or_path);
    require_trainable(*trainee.continued_adapter);
    adapters::require_applied(*trainee.continued_adapter, config.model.adapter_name_or_path);
    require_adapter_of(config, *trainee.continued_adapter);
    const adapters::LoraOptions options = adapters::lora_options_of(*trainee.continued_adapter);
    if (config::recipe_of(config).judges_documents()) require_whole_head(options, *trainee.model);
    trainee.adapter = adapters::attach_lora(*trainee.model, options);
    adapters::require_no_dropout_on_experts(options, trainee.adapter->layers(), *trainee.model);
  } else if (config.lora.use_peft) {
    adapters::LoraOptions options = with_new_tokens(options_of(config.lora), new_tokens);
    if (config::recipe_of(config).judges_documents()) add_document_head(options, *trainee.model);
    if (options.prompt_init == "TEXT" && !target.device.is_meta()) {
      options.prompt_text_ids = prompt_text_ids(config);
    }
    options.keeps_base = options.init == "loftq" &&
                         quantization_of(config.quantization, trainee.model_config).has_value();
    adapters::require_named_modules(options, *trainee.model);
    trainee.adapter = adapters::attach_lora(*trainee.model, options);
  }
}

void store_vocabulary(const config::RunConfig& config, const GrownVocabulary& grown,
                      bool is_imagined, Trainee& trainee) {
  if (!trainee.adapter) return;
  if (grown.num_rows != grown.num_old_rows) {
    trainee.adapter->store_vocabulary(*trainee.model, [](const std::string&) { return true; });
  } else if (!trainee.continued_adapter && !trainee.adapter->trained_tokens()) {
    // PEFT saves the base's weights of a targeted embedding and output layer, unless rows of
    // single tokens train, whose adapter is to be small.
    trainee.adapter->store_vocabulary(*trainee.model, [](const std::string& name) {
      return name.ends_with(".base_layer.weight");
    });
  } else if (trainee.continued_adapter && !is_imagined) {
    checkpoint::expect_stored_vocabulary(config.model.adapter_name_or_path, *trainee.model,
                                         *trainee.adapter);
  }
}

}  // namespace strata::train
