// Saved states from one format to another, tensor by tensor. Owns: the layouts that are written.
// Never: reading (saved_state.h) or arithmetic beyond a change of element type.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "strata/checkpoint/convert/saved_state.h"
#include "strata/checkpoint/sharded.h"
#include "strata/hf/hub/model.h"

namespace strata::checkpoint {

enum class ConvertTarget {
  kSafetensors,  // what from_pretrained loads: a model, or an adapter
  kTorch,        // pytorch_model.bin, or accelerate's pytorch_model_fsdp.bin and optimizer.bin
  kDcp,          // accelerate's pytorch_model_fsdp_0 and optimizer_0
  kStrata,       // OUT/checkpoint-STEP
};

struct ConvertOptions {
  ConvertTarget target = ConvertTarget::kSafetensors;
  uint64_t max_shard_size = uint64_t{50} << 30;
  std::optional<hf::DType> weight_type;  // floating types only; nothing: as they are
  bool with_optimizer = true;            // where the target can hold it
  SmallFiles small_files;                // kStrata: what lies beside the tensors
  bool keeps_base_mark = true;           // of an adapter, where the target can hold it
  Json config = {};                      // of a model: in place of its folder's config.json
  FileSystem* files = &real_file_system();
};

// Writes `out`, which must not exist or be an empty folder; it appears complete or not at all, and
// only when every tensor was read back as it was written.
// Returns what somebody should know, a line each. Memory: the largest tensor, twice where its type
// changes.
// Errors: ConfigError for states that the target cannot hold, FormatError, IoError.
std::vector<std::string> convert(SavedState& state, const std::filesystem::path& out,
                                 const ConvertOptions& options);

// The type in which the state's run writes its result (--save_dtype, --dtype), where that is not
// how a checkpoint of ours holds the weights.
std::optional<hf::DType> result_type_of(const SavedState& state);

// What the state's run and its adapter call their base: a folder, or a name on the Hub.
struct NamedBase {
  std::string name;
  hf::HubPlace place;
};
std::vector<NamedBase> named_bases(const SavedState& state);

// The folder of the model that the state's run started from, with config.json, in the Hub's cache,
// too; empty when it is not known or not there.
std::filesystem::path base_model_of(const SavedState& state);

// The labels of the weights' head for whole texts (models/reward_head.h); 0: they have none.
int64_t labels_of_head(const SavedState& state);

// What a copied config.json says otherwise, and whose tokenizer stands beside it.
struct ConfigChange {
  std::optional<hf::DType> type;  // of the weights
  bool unties_head = false;
  bool is_decoded = false;  // the weights are plain: no quantization_config
  bool is_packed = false;   // some are in MXFP4, ... (holds_packed()); else the method is left out
  // labels_of_head(), whatever the model had that the run started from.
  int64_t num_labels = 0;
  std::optional<int64_t> vocab_size = {};
  Json config = {};  // in place of that of `from`; null: that one
  // Whose tokenizer is copied; where that has no vocabulary, over that of `from`. Empty: that of
  // `from`.
  std::filesystem::path tokenizer = {};
  // Generation begins and stops with the ids of the copied tokenizer where `tokenizer` has a say in
  // it. If it cannot be read those of `from` stay, and `notes` gets a line that says why.
  bool takes_special_tokens = false;
  std::vector<std::string>* notes = nullptr;
  FileSystem* files = &real_file_system();
};
// Copies config.json, the tokenizer and their like from one model folder to another. Returns
// whether there was a config.json.
bool copy_companions(const std::filesystem::path& from, const std::filesystem::path& to,
                     const ConfigChange& change);

// The tokenizer's files of folder `from`, as many as there are; its template only where wanted.
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to,
                    FileSystem& files, bool with_template = true);

// Codes of a weight in integers that is not decoded as it is read.
bool is_of_integers(const SavedTensor& tensor);

// Those, blocks or scales of a weight in MXFP4 (hf/mxfp4.h), or one in fp8 that is not decoded, and
// whether there are any.
bool is_packed(const SavedTensor& tensor);
bool holds_packed(const SavedState& state);

// The type of the first weight that is neither codes nor whole numbers, such as masks; of the first
// of all where there is none. Requires: the state has tensors.
hf::DType plain_type(const SavedState& state);

// transformers trains the experts of a layer as one tensor, also where the model's files have one
// for each, and so states of FSDP name them: FormatError where nothing could continue from such a
// state of a whole model.
void require_own_experts(const SavedState& state);

// Throws ConfigError unless the folder may be created or is empty.
void require_new_folder(const std::filesystem::path& out);

}  // namespace strata::checkpoint
