#include "strata/train/assemble.h"

#include <algorithm>
#include <set>

#include "strata/adapters/adapter_options.h"
#include "strata/adapters/expert_targets.h"
#include "strata/adapters/lora_init.h"
#include "strata/adapters/named_modules.h"
#include "strata/base/error.h"
#include "strata/checkpoint/base_mark.h"
#include "strata/checkpoint/import.h"
#include "strata/comm/agreement.h"
#include "strata/config/recipes.h"
#include "strata/hf/base_fingerprint.h"
#include "strata/hf/hub_model.h"
#include "strata/libtorch/memory_kind.h"
#include "strata/libtorch/planned_device.h"
#include "strata/memory/allocator.h"
#include "strata/models/quantization.h"
#include "strata/models/registry.h"
#include "strata/models/reward_head.h"
#include "strata/models/vocabulary.h"
#include "strata/nn/sequence_parallel.h"
#include "strata/optim/adamw.h"
#include "strata/optim/make_optimizer.h"
#include "strata/shard/storage_type.h"
#include "strata/train/adapter_settings.h"
#include "strata/train/base_quantization.h"
#include "strata/train/first_look.h"
#include "strata/train/hub_place.h"
#include "strata/train/initial_values.h"
#include "strata/train/model_config.h"
#include "strata/train/named_folders.h"
#include "strata/train/offload_room.h"
#include "strata/train/strategy.h"
#include "strata/train/vocabulary.h"

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

// A head that nobody trained would give rewards at random.
void require_adapter_of(const config::RunConfig& config, const hf::AdapterConfig& adapter) {
  const bool has_head =
      std::ranges::count(adapter.modules_to_save, std::string(models::kRewardLayer)) > 0;
  const bool wants_head = config::recipe_of(config).gives_rewards;
  if (has_head == wants_head) return;
  throw ConfigError(
      "adapter_name_or_path: found an adapter {} a layer of rewards (score in modules_to_save) for "
      "the recipe {}, expected one {} it; {}",
      has_head ? "with" : "without", config.recipe, wants_head ? "with" : "without",
      wants_head ? "fold it into its base (strata merge-adapter) and start from that"
                 : "run strata reward in its place");
}

void attach_adapter(const config::RunConfig& config, const std::vector<int64_t>& new_tokens,
                    const Target& target, Trainee& trainee) {
  if (!config.model.adapter_name_or_path.empty()) {
    require_adapter_folder(config.model.adapter_name_or_path);
    trainee.continued_adapter = hf::read_adapter_config(config.model.adapter_name_or_path);
    require_trainable(*trainee.continued_adapter);
    require_adapter_of(config, *trainee.continued_adapter);
    const adapters::LoraOptions options = adapters::lora_options_of(*trainee.continued_adapter);
    trainee.adapter = adapters::attach_lora(*trainee.model, options);
    adapters::require_no_dropout_on_experts(options, trainee.adapter->layers(), *trainee.model);
  } else if (config.lora.use_peft) {
    adapters::LoraOptions options = with_new_tokens(options_of(config.lora), new_tokens);
    if (config::recipe_of(config).gives_rewards) add_reward_head(options);
    if (options.prompt_init == "TEXT" && !target.device.is_meta()) {
      options.prompt_text_ids = prompt_text_ids(config);
    }
    options.keeps_base = options.init == "loftq" &&
                         quantization_of(config.quantization, trainee.model_config).has_value();
    adapters::require_named_modules(options, *trainee.model);
    trainee.adapter = adapters::attach_lora(*trainee.model, options);
  }
}

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
  models::quantize_linears(model, *options);
}

// Weights whose type decides how something starts: branches over them, rows that are added, and
// what comes before every document.
std::set<const nn::Parameter*> types_of_starts(const Trainee& trainee) {
  std::set<const nn::Parameter*> weights;
  for (const models::VocabularyWeight& weight : models::vocabulary_weights(*trainee.model)) {
    const bool is_read = weight.parameter->num_new_rows() != 0 ||
                         trainee.model->virtual_tokens() != nullptr ||
                         (trainee.adapter && trainee.adapter->trained_tokens());
    if (is_read) weights.insert(weight.parameter);
  }
  if (!trainee.adapter) return weights;
  for (const nn::Linear* layer : trainee.adapter->layers()) weights.insert(&layer->weight());
  for (const nn::ExpertParameter* matrices : trainee.adapter->expert_parameters()) {
    weights.insert(matrices->weights.begin(), matrices->weights.end());
  }
  if (const nn::Embedding* embedding = trainee.adapter->embedding()) {
    weights.insert(&embedding->weight());
  }
  return weights;
}

// prepare_model_for_kbit_training: beside codes of bitsandbytes everything else is fp32, but, as in
// TRL, not where the base is sharded. Nor, here, where it has the type that it is computed in:
// fp32 of it would be the same numbers in twice the memory, and a copy more in every use.
void widen_beside_codes(const comm::Mesh& mesh, Trainee& trainee) {
  if (!has_bitsandbytes_codes(*trainee.model) || mesh.shard->size() > 1) return;
  const std::set<const nn::Parameter*> starts = types_of_starts(trainee);
  for (nn::Parameter* parameter : trainee.model->parameters()) {
    const bool is_as_computed = parameter->storage_type() == trainee.compute_type;
    const bool stays = parameter->quantization() || (is_as_computed && !starts.contains(parameter));
    if (!stays) parameter->set_storage_type(at::kFloat);
  }
}

// Trained weights have fp32 masters, whatever the file holds.
void widen_trained_weights(models::Model& model) {
  for (nn::Parameter* parameter : model.parameters()) {
    if (parameter->requires_grad()) parameter->set_storage_type(at::kFloat);
  }
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
        "{}: found {} beside virtual tokens, expected 1: documents would begin with them on every "
        "rank; remove it, or train another kind of adapter",
        kSetting, ranks);
  }
}

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

// What an adapter's files will say of its base; an adapter that goes on must have been trained on
// it. Rank 0 reads. Collective.
void identify_base(const config::RunConfig& config, const BaseFiles& base, comm::Group& world,
                   Trainee& trainee) {
  if (!trainee.adapter) return;
  comm::all_or_nothing(world, "looking at the adapter's base", [&] {
    if (world.rank() != 0 || !base.folder) return;
    const auto quantization = quantization_of(config.quantization, trainee.model_config);
    std::optional<checkpoint::CodesOnTheWay> codes;
    if (quantization) {
      codes = {.quantization = *quantization,
               .type = shard::storage_type_of(config.model.dtype, trainee.model_config)};
    }
    const std::string found = checkpoint::base_mark(*base.folder, codes);
    const adapters::LoraOptions& options = trainee.adapter->options();
    bool is_of_codes = options.keeps_base || adapters::changes_base(options);
    if (trainee.continued_adapter) {
      const std::string known =
          hf::fingerprint_in(hf::ModelFolder(config.model.adapter_name_or_path));
      trainee.base_note = checkpoint::require_base(config.model.adapter_name_or_path, known,
                                                   base.folder->path().string(), found,
                                                   adapters::changes_base(options));
      is_of_codes |= !hf::parse_base_mark(known).codes.empty();
    }
    trainee.base_fingerprint = is_of_codes ? found : checkpoint::mark_of_weights(found);
  });
  trainee.base_fingerprint = comm::broadcast_string(world, trainee.base_fingerprint);
}

// The longest input of a layer that the settings allow; longer ones (virtual tokens before each
// document of a packed row, rows that nothing bounds) get their room when they come.
shard::ActivationHomeOptions activation_home(const config::RunConfig& config, const Target& target,
                                             const Trainee& trainee) {
  const models::Model& model = *trainee.model;
  int64_t length = std::min(config.data.max_length.value_or(0), model.max_position_embeddings());
  if (config::recipe_of(config).has_encoder) {
    length = std::max(config.data.max_source_length, config.data.max_target_length);
  }
  if (model.virtual_tokens() != nullptr) length += model.virtual_tokens()->count();
  const int64_t sharers = config.shard.sequence_parallel_size;
  const int64_t tokens = config.train.per_device_train_batch_size * length;
  const int64_t numel = (tokens + sharers - 1) / sharers * model.hidden_size();
  return {.place = activation_place(config.shard, target),
          .files = trainee.offload.activation_files(),
          .reserved_bytes = static_cast<uint64_t>(numel) * c10::elementSize(trainee.compute_type)};
}

shard::Schedules schedules_of(const config::RunConfig& config, const Target& target,
                              models::Model& model, const shard::Partition& partition) {
  using Place = shard::ActivationHomeOptions::Place;
  shard::ScheduleOptions options = schedule_options(config.shard);
  options.offload_activations = activation_place(config.shard, target) != Place::kWhereComputed;
  return shard::build_schedules(shard::shape_of(model, partition), options);
}

// What this rank will have in files. Throws where the settings make no units.
OffloadBytes offload_bytes(const config::RunConfig& config, const Target& target,
                           const comm::Mesh& mesh, const Trainee& trainee) {
  const shard::Partition partition =
      shard::partition_model(*trainee.model, mesh.shard->size(), wrap_policy(config.shard));
  OffloadBytes bytes;
  if (config.shard.offload_param_device == "nvme") {
    bytes.parameters = shard::parameter_file_bytes(partition);
  }
  if (config.shard.offload_optimizer_device == "nvme") {
    bytes.state = optim::state_file_bytes(partition);
  }
  if (config.shard.activation_offloading == "disk") {
    const auto moved =
        shard::offloaded_blocks(schedules_of(config, target, *trainee.model, partition).training);
    bytes.activations = shard::activation_file_bytes(
        moved.size(), activation_home(config, target, trainee).reserved_bytes);
  }
  return bytes;
}

void make_executor(const config::RunConfig& config, const Target& target, Trainee& trainee) {
  trainee.executor = std::make_unique<shard::Executor>(
      *trainee.model, *trainee.store,
      schedules_of(config, target, *trainee.model, trainee.store->partition()),
      activation_home(config, target, trainee));
}

// A trainee without memory, and what will fill it.
struct Blueprint {
  std::unique_ptr<Trainee> trainee;
  BaseFiles base;
  GrownVocabulary grown;
  bool has_files = false;  // weights are read, not drawn or imagined
};

// Collective.
Blueprint draw_up(const config::RunConfig& config, comm::Mesh& mesh, const Target& target) {
  const bool is_imagined = target.device.is_meta();
  Blueprint result;
  std::unique_ptr<Trainee>& trainee = result.trainee;
  GrownVocabulary& grown = result.grown;
  comm::all_or_nothing(*mesh.world, "loading the model's configuration", [&] {
    (void)activation_place(config.shard, target);  // an error before anything is allocated
    trainee = std::make_unique<Trainee>(config);
    trainee->model_config = load_model_config(config.model, is_imagined);
    require_recipe_of(trainee->model_config, config);
    trainee->balancing = balancing_of(config, trainee->model_config);
    if (config::recipe_of(config).gives_rewards) {
      trainee->has_new_head = !models::has_reward_head(trainee->model_config);
      models::give_reward_head(trainee->model_config);
    }
    grown = grow_vocabulary(config, is_imagined, trainee->model_config);
    if (config::recipe_of(config).gives_rewards && grown.num_rows != grown.num_old_rows) {
      throw ConfigError(
          "chat_template_format: found {} tokens for {} rows of the embedding with the recipe "
          "reward, expected no new tokens; add them in a run of sft before",
          grown.num_rows, grown.num_old_rows);
    }
  });
  name_type(config.model, is_imagined, *mesh.world, trainee->model_config);
  const bool has_files = !config.model.model_name_or_path.empty() && !is_imagined;
  const bool sends = has_files && rank_0_reads(config, mesh);
  result.has_files = has_files;
  const bool is_untied = share_tie(config.model, is_imagined, *mesh.world, trainee->model_config);
  BaseFiles& base = result.base;
  comm::all_or_nothing(*mesh.world, "loading the model", [&] {
    const at::ScalarType storage =
        shard::storage_type_of(config.model.dtype, trainee->model_config);
    trainee->model = models::create_model(trainee->model_config,
                                          {.storage = storage,
                                           .buffers = scalar_type_of(config.shard.buffer_dtype),
                                           .is_untied = is_untied});
    attach_adapter(config, grown.trained_tokens, target, *trainee);
    require_shareable(config.shard.sequence_parallel_size, *trainee->model);
    quantize(config, trainee->model_config, *trainee->model);
    models::mark_new_rows(*trainee->model, grown.num_old_rows);
    if (trainee->adapter && grown.num_rows != grown.num_old_rows) {
      trainee->adapter->store_vocabulary(*trainee->model, [](const std::string&) { return true; });
    } else if (trainee->adapter && !trainee->continued_adapter &&
               !trainee->adapter->trained_tokens()) {
      // PEFT saves the base's weights of a targeted embedding and output layer, unless rows of
      // single tokens train, whose adapter is to be small.
      trainee->adapter->store_vocabulary(*trainee->model, [](const std::string& name) {
        return name.ends_with(".base_layer.weight");
      });
    } else if (trainee->continued_adapter && !is_imagined) {
      checkpoint::expect_stored_vocabulary(config.model.adapter_name_or_path, *trainee->model,
                                           *trainee->adapter);
    }
    if (has_files && (!sends || mesh.world->rank() == 0)) {
      base.folder.emplace(
          hf::locate_model(config.model.model_name_or_path, hub_place(config.model)));
      base.sources = trainee->model->check_weights(*base.folder);
    }
    trainee->compute_type = store_options(config.shard, target).compute_type;
    widen_beside_codes(mesh, *trainee);
    if (trainee->adapter) trainee->adapter->settle_fixed_tensors(target.device);
    widen_trained_weights(*trainee->model);
  });
  return result;
}

}  // namespace

void check_layout(const config::RunConfig& config, comm::Mesh& mesh, const Target& target) {
  OffloadBytes bytes;
  comm::all_or_nothing(*mesh.world, "laying out the model", [&] {
    const PlannedDeviceScope stands_for(target.device.type());
    comm::Mesh alone = comm::make_fake_mesh(mesh.world->size(), mesh.shard->size());
    config::RunConfig imagined = config;
    // Nothing is made there yet.
    imagined.shard.offload_param_nvme_path = imagined.shard.offload_optimizer_nvme_path = "";
    imagined.shard.activation_offloading_path = "";
    Target without_data = target;
    without_data.device = at::kMeta;
    const Blueprint blueprint = draw_up(imagined, alone, without_data);
    bytes = offload_bytes(config, without_data, alone, *blueprint.trainee);
  });
  require_offload_room(config.shard, bytes, *mesh.world);
}

std::unique_ptr<Trainee> assemble(const config::RunConfig& config, comm::Mesh& mesh,
                                  const Target& target) {
  const bool is_imagined = target.device.is_meta();
  std::optional<LoadMeter> meter;
  if (!is_imagined) meter.emplace(target.device);
  Blueprint blueprint = draw_up(config, mesh, target);
  std::unique_ptr<Trainee> trainee = std::move(blueprint.trainee);
  const BaseFiles& base = blueprint.base;
  if (trainee->offload.is_on()) {
    OffloadBytes bytes;
    comm::all_or_nothing(*mesh.world, "counting what is offloaded",
                         [&] { bytes = offload_bytes(config, target, mesh, *trainee); });
    require_offload_room(config.shard, bytes, *mesh.world);
  }
  comm::all_or_nothing(*mesh.world, "allocating the parameters", [&] {
    shard::StoreOptions options = store_options(config.shard, target);
    options.parameter_files = trainee->offload.parameter_files();
    trainee->store = std::make_unique<shard::UnitStore>(*trainee->model, mesh, options);
  });
  if (blueprint.has_files) identify_base(config, base, *mesh.world, *trainee);
  // Before values are read: its folder may be too small.
  comm::all_or_nothing(*mesh.world, "allocating the optimizer's state", [&] {
    const MemoryScope scope(MemoryKind::kOptimizer);
    trainee->optimizer =
        optim::make_optimizer(*trainee->store, {.name = config.optim.optim,
                                                .beta1 = config.optim.adam_beta1,
                                                .beta2 = config.optim.adam_beta2,
                                                .eps = config.optim.adam_epsilon,
                                                .weight_decay = config.optim.weight_decay,
                                                .state_files = trainee->offload.state_files(),
                                                .sub_group_size = config.shard.sub_group_size});
  });
  comm::all_or_nothing(*mesh.world, "making room for activations",
                       [&] { make_executor(config, target, *trainee); });
  if (is_imagined) {
    imagine_initial_values(config, *trainee);
  } else {
    set_initial_values(config, base, *trainee);
  }
  if (trainee->store->file() != nullptr) trainee->store->file()->forget_pages();
  if (meter) {
    // What loading took and gave back counts at its peak alone.
    memory::trim_cpu_memory();
    trainee->load_memory = meter->finish(*mesh.world);
  }
  return trainee;
}

}  // namespace strata::train
