#include "strata/train/setup/assemble.h"

#include <algorithm>
#include <optional>
#include <string>

#include "strata/adapters/lora_init.h"
#include "strata/checkpoint/base_mark.h"
#include "strata/comm/agreement.h"
#include "strata/config/optim_args.h"
#include "strata/config/recipes.h"
#include "strata/hf/base_fingerprint.h"
#include "strata/libtorch/memory_kind.h"
#include "strata/libtorch/planned_device.h"
#include "strata/memory/allocator.h"
#include "strata/optim/adamw.h"
#include "strata/optim/make_optimizer.h"
#include "strata/optim/trailing_weights.h"
#include "strata/shard/storage_type.h"
#include "strata/train/setup/base_quantization.h"
#include "strata/train/setup/blueprint.h"
#include "strata/train/setup/initial_values.h"
#include "strata/train/setup/offload_room.h"

namespace strata::train {
namespace {

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
  const int64_t documents = config::recipe_of(config).reads_pairs ? 2 : 1;  // of a row
  const int64_t tokens = config.train.per_device_train_batch_size * documents * length;
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
  options.resident |= keeps_compute_copies(config, target);
  return shard::build_schedules(shard::shape_of(model, partition), options);
}

// What this rank will have in files. Throws where the settings make no units.
OffloadBytes offload_bytes(const config::RunConfig& config, const Target& target,
                           const comm::Mesh& mesh, const Trainee& trainee) {
  const shard::Partition partition =
      shard::partition_model(*trainee.model, mesh.shard->size(), wrap_policy(config.shard));
  OffloadBytes bytes;
  if (config.shard.offload_param_device == config::OffloadDevice::kNvme) {
    bytes.parameters = shard::parameter_file_bytes(partition);
  }
  if (config.shard.offload_optimizer_device == config::OffloadDevice::kNvme) {
    bytes.state = optim::state_file_bytes(partition);
  }
  if (config.shard.activation_offloading == config::ActivationOffloading::kDisk) {
    const auto moved =
        shard::offloaded_blocks(schedules_of(config, target, *trainee.model, partition).training);
    bytes.activations = shard::activation_file_bytes(
        moved.size(), activation_home(config, target, trainee).reserved_bytes);
  }
  return bytes;
}

void make_optimizer(const config::RunConfig& config, Trainee& trainee) {
  const MemoryScope scope(MemoryKind::kOptimizer);
  const config::SgdArgs sgd = config::parse_sgd_args(config.optim.optim_args, "optim_args");
  trainee.optimizer = optim::make_optimizer(
      *trainee.store,
      {.name = config.optim.optim,
       .beta1 = config.optim.adam_beta1,
       .beta2 = config.optim.adam_beta2,
       .eps = config.optim.adam_epsilon,
       .weight_decay = config.optim.weight_decay,
       .decays_all = config.optim.decay_norms_and_biases,
       .momentum = {.factor = sgd.momentum, .dampening = sgd.dampening, .nesterov = sgd.nesterov},
       .state_files = trainee.offload.state_files(),
       .sub_group_size = config.shard.sub_group_size});
  if (!config.preference.sync_ref_model) return;
  auto reference =
      std::make_unique<optim::TrailingWeights>(*trainee.store, std::move(trainee.optimizer));
  trainee.reference = reference.get();
  trainee.optimizer = std::move(reference);
}

void make_executor(const config::RunConfig& config, const Target& target, Trainee& trainee) {
  trainee.executor = std::make_unique<shard::Executor>(
      *trainee.model, *trainee.store,
      schedules_of(config, target, *trainee.model, trainee.store->partition()),
      activation_home(config, target, trainee));
}

// What this rank will have in files, of a model that is drawn up without memory.
OffloadBytes lay_out(const config::RunConfig& config, comm::Mesh alone, const Target& target) {
  const PlannedDeviceScope stands_for(target.device.type());
  config::RunConfig imagined = config;
  // Nothing is made there yet.
  imagined.shard.offload_param_nvme_path = imagined.shard.offload_optimizer_nvme_path = "";
  imagined.shard.activation_offloading_path = "";
  Target without_data = target;
  without_data.device = at::kMeta;
  const Blueprint blueprint = draw_up(imagined, alone, without_data);
  return offload_bytes(config, without_data, alone, *blueprint.trainee);
}

}  // namespace

void check_layout(const config::RunConfig& config, comm::Mesh& mesh, const Target& target) {
  OffloadBytes bytes;
  comm::all_or_nothing(*mesh.world, "laying out the model", [&] {
    bytes = lay_out(config, comm::make_fake_mesh(mesh.world->size(), mesh.shard->size()), target);
  });
  require_offload_room(config.shard, bytes, *mesh.world);
}

void check_layout(const config::RunConfig& config, int world_size, int local_world_size,
                  const Target& target) {
  const comm::MeshShape shape = mesh_shape(config.shard, world_size, local_world_size);
  comm::check_mesh_shape(world_size, shape);
  (void)lay_out(config, comm::make_fake_mesh(world_size, shape), target);
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
  comm::all_or_nothing(*mesh.world, "allocating the optimizer's state",
                       [&] { make_optimizer(config, *trainee); });
  comm::all_or_nothing(*mesh.world, "making room for activations",
                       [&] { make_executor(config, target, *trainee); });
  if (is_imagined) {
    imagine_initial_values(config, *trainee);
  } else {
    set_initial_values(config, base, *trainee);
    if (trainee->reference != nullptr) trainee->reference->take();
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
