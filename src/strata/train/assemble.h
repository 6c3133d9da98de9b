// Builds what a run trains: model, adapter, homes filled from files, schedule, executor, optimizer.
// Owns: the order model -> adapters -> sharding -> optimizer -> values. Never: steps or batches.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "strata/adapters/lora.h"
#include "strata/comm/mesh.h"
#include "strata/comm/rendezvous.h"
#include "strata/config/run_config.h"
#include "strata/hf/adapter_files.h"
#include "strata/optim/optimizer.h"
#include "strata/shard/executor.h"
#include "strata/shard/unit_store.h"
#include "strata/train/balancing.h"
#include "strata/train/load_memory.h"
#include "strata/train/offload.h"
#include "strata/train/strategy.h"

namespace strata::train {

// Everything that trains. Members refer to each other: not to be moved.
struct Trainee {
  explicit Trainee(const config::RunConfig& config) : offload(config.shard) {}

  OffloadFolders offload;  // first: what rests in them goes before
  Json model_config;       // config.json of the base
  std::unique_ptr<models::Model> model;
  std::unique_ptr<adapters::LoraAdapter> adapter;  // null: the whole model trains
  std::optional<hf::AdapterConfig> continued_adapter;
  std::string base_fingerprint;  // of an adapter's base; empty when it has none
  // In a plan: bytes of the file that are mapped at a time while weights are quantised.
  int64_t largest_mapped = 0;
  std::string base_note;  // what is not known of a continued adapter's base; on rank 0
  std::unique_ptr<shard::UnitStore> store;
  std::unique_ptr<shard::Executor> executor;
  std::unique_ptr<optim::Optimizer> optimizer;
  at::ScalarType compute_type = at::kFloat;
  bool has_new_head = false;            // the layer of rewards, which the base's files lack
  Balancing balancing;                  // of a mixture's experts
  std::vector<LoadMemory> load_memory;  // by rank
};

// config.json of the settings' model, from model_name_or_path or config_name. `alone`: of a model
// of the Hub nothing else is downloaded.
Json load_model_config(const config::ModelConfig& config, bool alone = false);

// ConfigError unless the settings' recipe is the one for such a model: seq2seq where there is an
// encoder, sft elsewhere.
void require_recipe_of(const Json& model_config, const config::RunConfig& config);

// What assemble() would refuse although settings, model and folders are all there is to know: wrap
// classes that the model has not, no room on disk for what is offloaded. Takes no memory for
// weights. Collective.
void check_layout(const config::RunConfig& config, comm::Mesh& mesh, const Target& target);

// Collective over the mesh. On device meta no weights are read: config.json suffices.
std::unique_ptr<Trainee> assemble(const config::RunConfig& config, comm::Mesh& mesh,
                                  const Target& target = {});

}  // namespace strata::train
