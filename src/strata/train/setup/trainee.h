// What a run trains and what computes and updates it, in one place. Never: builds (assemble.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/adapters/lora.h"
#include "strata/base/json.h"
#include "strata/config/run_config.h"
#include "strata/generate/generation_config.h"
#include "strata/hf/adapter_files.h"
#include "strata/models/model.h"
#include "strata/optim/optimizer.h"
#include "strata/shard/executor.h"
#include "strata/shard/unit_store.h"
#include "strata/train/loop/balancing.h"
#include "strata/train/setup/load_memory.h"
#include "strata/train/setup/offload.h"

namespace strata::optim {
class TrailingWeights;
}

namespace strata::train {

// Everything that trains. Members refer to each other: not to be moved.
struct Trainee {
  explicit Trainee(const config::RunConfig& config) : offload(config.shard) {}

  OffloadFolders offload;                 // first: what is stored in them goes before
  Json model_config;                      // config.json of the base
  generate::GenerationConfig generation;  // its files' own, where evaluations write answers
  std::unique_ptr<models::Model> model;
  std::unique_ptr<adapters::LoraAdapter> adapter;  // null: the whole model trains
  std::optional<hf::AdapterConfig> continued_adapter;
  std::string base_fingerprint;  // of an adapter's base; empty when it has none
  // In a plan: bytes of the file that are mapped at a time while weights are quantised.
  int64_t largest_mapped = 0;
  int num_decoded_ints = 0;  // matrices of a base in integers that do not stay so under the adapter
  // In a plan without files: what config.json says of some matrices in integers, assumed of all.
  std::string assumed_ints;
  std::string base_note;  // what is not known of a continued adapter's base; on rank 0
  std::unique_ptr<shard::UnitStore> store;
  std::unique_ptr<shard::Executor> executor;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::TrailingWeights* reference = nullptr;  // in the optimizer; null: the reference stays
  at::ScalarType compute_type = at::kFloat;
  bool has_new_head = false;            // the head for documents, which the base's files lack
  Balancing balancing;                  // of a mixture's experts
  std::vector<LoadMemory> load_memory;  // by rank
};

}  // namespace strata::train
