// Fills homes from what other tools save: a Hugging Face model or a PEFT adapter. Owns: which
// tensor of a file belongs to which parameter. Never: checking of base weights
// (Model::check_weights).
#pragma once

#include <filesystem>
#include <functional>

#include "strata/adapters/lora.h"
#include "strata/hf/model_folder.h"
#include "strata/models/model.h"
#include "strata/shard/loading.h"

namespace strata::checkpoint {

// Reads base weights by the names that check_weights() found; knows no adapter weights.
// Requires: both arguments outlive the source.
shard::Source base_source(const hf::ModelFolder& folder, const models::WeightSources& sources);

// The base's weights as the checkpoint has them, whatever their homes hold.
struct PlainBase {
  // A weight of the checkpoint as fp32; empty where that holds codes.
  std::function<at::Tensor(const nn::Parameter&)> read;
  bool is_on_rank_0_alone = false;
};
// Gives an adapter the first values that start from the base's, which it may change.
// `only_base`: the adapter's own come from a file. Requires: the base's homes are filled.
// Collective over the world.
void initialize_from_base(const adapters::LoraAdapter& adapter, shard::UnitStore& store,
                          uint64_t seed, bool only_base, const PlainBase& plain = {});

// Rows of the embedding or output layer that an adapter's file holds whole, because they were
// trained, or because the vocabulary had grown; 0: none.
int64_t stored_vocabulary_rows(const std::filesystem::path& folder);

// Makes those weights of the base that the file holds too tensors of the adapter.
// Requires: the model has stored_vocabulary_rows() rows where that is not 0.
void expect_stored_vocabulary(const std::filesystem::path& folder, models::Model& model,
                              adapters::LoraAdapter& adapter);

// A tensor of a folder, whole, fp32.
at::Tensor read_plain(const hf::ModelFolder& folder, const std::string& name);

// Fills the adapter's weights from FOLDER/adapter_model.safetensors. FormatError unless the file
// holds exactly the adapter's tensors, all of finite numbers. `rank_0_reads`: as
// shard::send_homes(), collective then.
void load_adapter(const std::filesystem::path& folder, const adapters::LoraAdapter& adapter,
                  shard::UnitStore& store, bool rank_0_reads = false);

// The same values whole, fp32, in the memory of one process; fixed tensors are filled in place.
using AdapterValues = std::vector<std::pair<nn::Parameter*, at::Tensor>>;
AdapterValues read_adapter(const std::filesystem::path& folder,
                           const adapters::LoraAdapter& adapter);

}  // namespace strata::checkpoint
