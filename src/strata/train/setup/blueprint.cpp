#include "strata/train/setup/blueprint.h"

#include <string_view>

#include "strata/adapters/lora_init.h"
#include "strata/base/error.h"
#include "strata/comm/agreement.h"
#include "strata/config/recipes.h"
#include "strata/hf/fp8.h"
#include "strata/hf/hub/model.h"
#include "strata/hf/int_form.h"
#include "strata/models/quantization.h"
#include "strata/models/registry.h"
#include "strata/models/reward_head.h"
#include "strata/models/vocabulary.h"
#include "strata/nn/attention/sequence_parallel.h"
#include "strata/shard/storage_type.h"
#include "strata/train/labels.h"
#include "strata/train/setup/attach_adapter.h"
#include "strata/train/setup/base_quantization.h"
#include "strata/train/setup/first_look.h"
#include "strata/train/setup/hub_place.h"
#include "strata/train/setup/model_config.h"
#include "strata/train/setup/vocabulary.h"
#include "strata/train/setup/widen_weights.h"

namespace strata::train {
namespace {

// Sets vocab_size to the rows that the run's tokens need. `num_old_rows` stays what the base's
// files hold.
GrownVocabulary grow_vocabulary(const config::RunConfig& config, bool alone, Json& model_config) {
  const auto entry = model_config.find("vocab_size");
  if (entry == model_config.end() || !entry->is_number_integer()) return {};
  GrownVocabulary grown = count_rows(config, entry->get<int64_t>(), alone);
  *entry = grown.num_rows;
  if (config.model.model_name_or_path.empty()) grown.num_old_rows = grown.num_rows;
  return grown;
}

// config.json as the run's model has it: with the head for documents and the rows that it adds.
GrownVocabulary settle_model_config(const config::RunConfig& config, bool is_imagined,
                                    Trainee& trainee) {
  const config::RecipeRow& recipe = config::recipe_of(config);
  trainee.model_config = load_model_config(config.model, is_imagined);
  require_recipe_of(trainee.model_config, config);
  if (config.train.predict_with_generate) {
    trainee.generation = load_generation_config(config.model, is_imagined);
  }
  trainee.balancing = balancing_of(config, trainee.model_config);
  if (recipe.reads_labels) {
    trainee.has_new_head = give_labels(config.classify, trainee.model_config);
  } else if (recipe.gives_rewards) {
    trainee.has_new_head = !models::has_reward_head(trainee.model_config);
    models::give_reward_head(trainee.model_config);
  }
  const GrownVocabulary grown = grow_vocabulary(config, is_imagined, trainee.model_config);
  if (recipe.judges_documents() && grown.num_rows != grown.num_old_rows) {
    throw ConfigError(
        "chat_template_format: found {} tokens for {} rows of the embedding with the recipe {}, "
        "expected no new tokens; add them in a run of sft before",
        grown.num_rows, grown.num_old_rows, recipe.command);
  }
  return grown;
}

std::unique_ptr<models::Model> make_model(const config::RunConfig& config, const Json& model_config,
                                          const LayersInFiles& files) {
  return models::create_model(model_config,
                              {.storage = shard::storage_type_of(config.model.dtype, model_config),
                               .buffers = scalar_type_of(config.shard.buffer_dtype),
                               .is_untied = files.is_untied,
                               .has_new_dense = files.has_new_dense});
}

// Sequences that ranks share: what of the model must fit.
void require_shareable(int64_t ranks, const models::Model& model) {
  if (ranks == 1) return;
  constexpr std::string_view kSetting = "sequence_parallel_size";
  const auto heads = model.head_counts();
  if (!heads) {
    throw ConfigError("{}: found {} for {}, expected 1; remove it", kSetting, ranks,
                      model.architecture());
  }
  const std::string error = nn::head_share_error(heads->queries, heads->keys, ranks);
  if (!error.empty()) throw ConfigError("{}: {}; change it", kSetting, error);
  if (model.virtual_tokens() != nullptr) {
    throw ConfigError(
        "{}: found {} with virtual tokens, expected 1: documents would begin with them on every "
        "rank; remove it, or train another kind of adapter",
        kSetting, ranks);
  }
}

// Whether what files hold in fp8 or whole numbers may stay so where it is frozen: who changes the
// base needs plain values.
bool keeps_codes(const config::RunConfig& config, const Trainee& trainee) {
  const config::QuantizationConfig& quantization = config.quantization;
  if (!trainee.adapter) return false;
  if (quantization.load_in_4bit || quantization.load_in_8bit) return false;
  return !adapters::changes_base(trainee.adapter->options());
}

void keep_fp8(const config::RunConfig& config, const std::optional<models::Fp8Tiles>& tiles,
              Trainee& trainee) {
  if (config.quantization.fp8_dequantize || !keeps_codes(config, trainee)) return;
  if (!hf::announces_fp8(trainee.model_config)) return;
  models::Model& model = *trainee.model;
  models::keep_fp8(model, tiles ? *tiles : models::announced_fp8_tiles(model, trainee.model_config),
                   shard::storage_type_of(config.model.dtype, trainee.model_config));
}

void keep_ints(const config::RunConfig& config, const std::optional<models::IntFormats>& formats,
               Trainee& trainee) {
  if (config.quantization.int_dequantize || !keeps_codes(config, trainee)) return;
  if (!hf::announces_ints(trainee.model_config)) return;
  models::Model& model = *trainee.model;
  if (!formats) trainee.assumed_ints = models::assumed_int_scheme(trainee.model_config);
  trainee.num_decoded_ints = models::keep_ints(
      model, formats ? *formats : models::announced_int_formats(model, trainee.model_config),
      shard::storage_type_of(config.model.dtype, trainee.model_config));
}

// Which weights are stored as codes: those of the files, or those that the settings ask for.
void quantize(const config::RunConfig& config, const Json& model_config, models::Model& model) {
  const bool has_base = !config.model.model_name_or_path.empty();
  if (has_base && !config.quantization.mxfp4_dequantize) {
    models::keep_mxfp4(model, model_config,
                       shard::storage_type_of(config.model.dtype, model_config));
  }
  const auto options = quantization_of(config.quantization, model_config);
  if (!options) return;
  // A checkpoint that another program quantised may name more than the model has.
  if (!models::stored_quantization(model_config)) {
    models::require_skip_modules(model, options->skip_modules);
  }
  models::quantize_base(model, *options);
}

BaseFiles open_base(const config::ModelConfig& config, models::Model& model) {
  BaseFiles base;
  base.folder.emplace(hf::locate_model(config.model_name_or_path, hub_place(config)));
  base.sources = model.check_weights(*base.folder);
  return base;
}

// In what type each weight is stored.
void settle_types(const config::RunConfig& config, const comm::Mesh& mesh, const Target& target,
                  Trainee& trainee) {
  trainee.compute_type = store_options(config.shard, target).compute_type;
  widen_beside_codes(mesh, trainee);
  if (trainee.adapter) trainee.adapter->settle_fixed_tensors(target.device);
  widen_trained_weights(*trainee.model);
}

}  // namespace

Blueprint draw_up(const config::RunConfig& config, comm::Mesh& mesh, const Target& target) {
  const bool is_imagined = target.device.is_meta();
  Blueprint result;
  GrownVocabulary grown;
  comm::all_or_nothing(*mesh.world, "loading the model's configuration", [&] {
    (void)activation_place(config.shard, target);  // an error before anything is allocated
    result.trainee = std::make_unique<Trainee>(config);
    grown = settle_model_config(config, is_imagined, *result.trainee);
  });
  Trainee& trainee = *result.trainee;
  name_type(config.model, is_imagined, *mesh.world, trainee.model_config);
  LayersInFiles layers = share_layers(config.model, is_imagined, *mesh.world, trainee.model_config);
  layers.has_new_dense &= trainee.has_new_head;
  const auto fp8 = share_fp8(config.model, is_imagined, *mesh.world, trainee.model_config);
  const auto ints = share_ints(config.model, is_imagined, *mesh.world, trainee.model_config);
  result.has_files = !config.model.model_name_or_path.empty() && !is_imagined;
  const bool reads = result.has_files && (mesh.world->rank() == 0 || !rank_0_reads(config, mesh));
  comm::all_or_nothing(*mesh.world, "loading the model", [&] {
    trainee.model = make_model(config, trainee.model_config, layers);
    attach_adapter(config, grown.trained_tokens, target, trainee);
    require_shareable(config.shard.sequence_parallel_size, *trainee.model);
    if (!config.model.model_name_or_path.empty()) {
      keep_fp8(config, fp8, trainee);
      keep_ints(config, ints, trainee);
    }
    quantize(config, trainee.model_config, *trainee.model);
    models::mark_new_rows(*trainee.model, grown.num_old_rows);
    store_vocabulary(config, grown, is_imagined, trainee);
    if (reads) result.base = open_base(config.model, *trainee.model);
    settle_types(config, mesh, target, trainee);
  });
  return result;
}

}  // namespace strata::train
