// A checkpoint, with an adapter if wanted, whole in the memory of one process and ready to answer.
// Owns: finding an adapter's base, element types at rest, the homes. Never: training memory (no
// gradients, no optimizer state), nor the choice of tokens.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strata/adapters/lora.h"
#include "strata/comm/mesh.h"
#include "strata/generate/adapted_model.h"
#include "strata/generate/kept_codes.h"
#include "strata/hf/hub/download.h"
#include "strata/models/model.h"
#include "strata/models/quantization.h"
#include "strata/nn/attention/kv_cache.h"
#include "strata/shard/unit_store.h"

namespace strata::generate {

// An adapter to choose by its name.
struct NamedAdapter {
  std::string name;
  std::filesystem::path folder;
};

struct LoadOptions {
  std::filesystem::path model = {};  // folder of a checkpoint, or of an adapter that names its base
  std::filesystem::path adapter = {};       // empty: none; its name is that of its folder
  std::vector<NamedAdapter> adapters = {};  // further ones
  std::string dtype = "auto";  // auto: config.json's; else float32, bfloat16 or float16
  // Plain weights become codes while they are loaded; a folder that holds codes says so itself.
  std::optional<models::QuantizationOptions> quantization = {};
  DecodedForms decoded = {};         // codes of the folder that do not stay
  at::Device device = at::kCPU;      // where the weights are and answers are computed
  std::filesystem::path cache = {};  // of the Hub, for models by name; empty: the default
  hf::DownloadProgress download_progress = {};
};

struct ModelPaths {
  std::filesystem::path base;
  std::filesystem::path adapter;  // empty: none
};

// Which folders `options` means. A relative base_model_name_or_path is tried against the current
// folder, then against the adapter's. IoError for a missing folder, ConfigError when no base is
// found or when two adapters are named.
ModelPaths find_model(const LoadOptions& options);

// Several adapters may be loaded over one base; one of them, or none, is in use.
// Invariants: every unit is gathered from construction to destruction; nothing requires a gradient.
// Threads: one at a time. Memory: the base's weights once, in the compute type, and each adapter's.
class LoadedModel {
 public:
  // Errors: as find_model(), and those of reading files.
  explicit LoadedModel(const LoadOptions& options);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const ModelPaths& paths() const { return paths_; }
  // The adapter's folder when it has a tokenizer of its own, else the base's.
  const std::filesystem::path& tokenizer_folder() const { return tokenizer_folder_; }
  // Weights are rounded to this type; products may be taken in a wider one.
  at::ScalarType storage_type() const { return storage_type_; }
  at::ScalarType compute_type() const { return compute_type_; }
  // The loaded adapters, in the order given, and the one in use: empty: the base alone. At first
  // the first one is.
  std::vector<std::string> adapter_names() const;
  const std::string& active_adapter() const { return active_; }
  // ConfigError that lists the names for an unknown one. Empty: the base alone.
  void use_adapter(const std::string& name);
  // Folds the adapter in use into the weights, and takes it out again: AdaptedModel::merge().
  // ConfigError where there is none, or where it is not merged.
  void merge_adapter();
  void unmerge_adapter();
  bool is_merged(const std::string& name) const;
  // What a user should know of the adapters, a sentence each.
  const std::vector<std::string>& notes() const { return notes_; }
  // Another number whenever answers may differ: what was computed before does not count any more.
  int revision() const { return revision_; }
  // Tokens that the adapter in use puts before every text; part of a cache's length.
  int64_t num_virtual_tokens() const;
  int64_t vocab_size() const { return active_model().vocab_size(); }
  // The most tokens of a text, beside virtual ones.
  int64_t max_text_tokens() const {
    return model_->max_position_embeddings() - num_virtual_tokens();
  }
  // Where that number comes from, for messages that name it: "(max_position_embeddings)".
  std::string text_limit_note() const;
  int64_t num_layers() const;

  // Logits after the last of `ids`, fp32 [vocab] on the CPU, and adds the ids to the cache. Without
  // a cache `ids` is the whole text. Requires: 0 <= id < vocab_size(); ids is not empty.
  at::Tensor next_logits(std::span<const int32_t> ids, nn::KvCache* cache);

 private:
  void load_base(const hf::ModelFolder& folder, const DecodedForms& decoded);
  void load_adapters(const hf::ModelFolder& folder, const std::vector<NamedAdapter>& adapters);
  void choose_tokenizer(const std::vector<NamedAdapter>& adapters);
  // Where one has a chat template and the conversation none, or the other way round.
  void note_template(const std::string& name, const std::filesystem::path& folder);
  AdaptedModel* active_adapted() const;  // null: the base alone
  models::Model& active_model() const;

  ModelPaths paths_;
  at::Device device_;
  at::ScalarType storage_type_ = at::kFloat;
  at::ScalarType compute_type_ = at::kFloat;
  std::optional<models::QuantizationOptions> quantization_;  // of the base's codes
  comm::Mesh mesh_;
  std::unique_ptr<models::Model> model_;  // the base
  std::unique_ptr<shard::UnitStore> store_;
  BaseTensors base_tensors_;
  KeptCodes kept_codes_;
  struct Loaded {
    std::string name;
    std::unique_ptr<AdaptedModel> model;
  };
  std::vector<Loaded> adapters_;
  std::filesystem::path tokenizer_folder_;
  std::vector<std::string> notes_;
  std::string active_;
  int revision_ = 0;
};

}  // namespace strata::generate
