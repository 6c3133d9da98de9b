// LoRA adapters: which layers get a low-rank branch, their names and counts, all as PEFT has them.
// Owns: attaching. Never: the products (nn/linear.h), first values (lora_init.h), files
// (hf/adapter_files.h) or where values lie (shard/).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/models/model.h"
#include "strata/nn/embedding.h"
#include "strata/nn/experts/expert_branch.h"
#include "strata/nn/linear.h"

namespace strata::adapters {

enum class Method {
  kLora,
  kIa3,   // (IA)^3: factors on the layers' outputs, or inputs of feedforward modules (nn/rescale.h)
  kVera,  // VeRA: two vectors a layer around shared random matrices (nn/vera.h)
  kPrompt,  // prompt tuning: rows before the embedded tokens (nn/virtual_tokens.h)
  kPrefix,  // prefix tuning: rows before every layer's keys and values
};

// A new field has its place in train/setup/adapter_settings.cpp (a run's settings) and in
// adapter_options.cpp (the file), whose tests then ask for a value of it.
struct LoraOptions {
  Method method = Method::kLora;
  // (IA)^3: the targets that are rescaled at their input, by the ends of their paths (none: no
  // layer) or an expression; neither: the family's.
  std::optional<std::vector<std::string>> feedforward_modules = {};
  std::optional<std::string> feedforward_pattern = {};
  int64_t r = 8;
  double alpha = 8;
  double dropout = 0.0;
  // A list (a module matches by its full path or by "." + entry at its end) or, when `pattern` is
  // set, a regular expression on the full path (Python syntax) or "all-linear". Neither: the
  // family's default (Llama: q_proj, v_proj).
  std::vector<std::string> target_modules;
  std::optional<std::string> target_pattern;
  // Parameters of experts that get branches, by their names or by "." + entry at the end of those
  // (target_parameters.h). Beside them, no module need be a target.
  std::vector<std::string> target_parameters = {};
  // Modules that are never targeted, by the same two kinds of rules.
  std::vector<std::string> exclude_modules = {};
  std::optional<std::string> exclude_pattern = {};
  // Only matches in these layers; empty: all. The number is the first one in the path, or
  // the one after a name of `layers_pattern`.
  std::vector<int64_t> layers_to_transform = {};
  std::vector<std::string> layers_pattern = {};
  // Another rank or alpha for modules whose path's end matches; the first that does decides.
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  // Modules trained whole beside the branches; the base keeps its own copy (PEFT's
  // ModulesToSaveWrapper), so a tied output layer is untied by naming it here.
  std::vector<std::string> modules_to_save;
  // Rows of the embedding, or of the output layer alone, that train by themselves; the end of the
  // module's path.
  std::vector<int64_t> trainable_tokens = {};
  std::string token_module = {};                      // empty: the embedding
  std::vector<std::string> other_token_modules = {};  // which must be tied to it
  // A tied embedding or output layer that is saved whole stays tied.
  bool ensure_weight_tying = false;
  // What an adapter's file says of its layers, which know it themselves: a note where it is wrong.
  bool fan_in_fan_out = false;
  bool use_rslora = false;
  bool use_dora = false;      // branches with a magnitude, nn/dora.h
  bool lora_bias = false;     // B gets a bias
  std::string bias = "none";  // the base's biases that train: none, all, lora_only
  // First values, adapters/lora_init.h.
  std::string init = "true";
  int64_t loftq_bits = 4;  // of init "loftq": 4 (NF4) or 8
  int64_t loftq_iter = 1;
  bool keeps_base = false;  // "loftq" over a base that is quantised already
  // VeRA: first value of lambda_d, seed of the shared matrices, whether the file holds those.
  double d_initial = 0.1;
  uint64_t projection_prng_key = 0;
  bool save_projection = true;
  // VeRA: "true", or "false" for random lambda_d; prefix tuning: "zero" for zeros.
  std::string init_weights = "true";
  // Prompt and prefix tuning.
  int64_t num_virtual_tokens = 0;
  // Prefix tuning: train the network that makes the rows. Off for an adapter out of a file, which
  // holds the rows alone. Its hidden size; 0: that of the keys of a layer.
  bool prefix_projection = false;
  int64_t encoder_hidden_size = 0;
  std::string prompt_init = "RANDOM";         // SAMPLE_VOCAB, TEXT
  std::vector<int64_t> prompt_text_ids = {};  // of TEXT: the text's tokens

  bool has_virtual_tokens() const { return method == Method::kPrompt || method == Method::kPrefix; }
  bool operator==(const LoraOptions&) const = default;
};

// A trainable weight and the name it has in adapter_model.safetensors.
struct AdapterTensor {
  std::string name;
  nn::Parameter* parameter;
};

// Rows of single tokens that train alone, and the weight whose rows they take the place of.
struct TrainedTokens {
  nn::TokenRows* rows;
  nn::Parameter* weight;
  std::string path;      // of the module that has them
  bool is_output_alone;  // not the embedding, although it may be tied
};

// A frozen tensor of the adapter's file, the same on every rank.
struct FixedTensor {
  std::string name;
  at::Tensor* tensor;
};

class LoraAdapter {
 public:
  const LoraOptions& options() const { return options_; }
  // The layers with a branch, in module order.
  const std::vector<nn::Linear*>& layers() const { return layers_; }
  // The matrices of experts with branches, in module order.
  const std::vector<nn::ExpertParameter*>& expert_parameters() const { return expert_parameters_; }
  // The token embedding where it has a branch; else null.
  nn::Embedding* embedding() const { return embedding_; }
  const std::optional<TrainedTokens>& trained_tokens() const { return trained_tokens_; }
  // What the settings make of the model that its user may not expect, a sentence each.
  const std::vector<std::string>& notes() const { return notes_; }
  // All weights that the adapter file holds: branches in module order, those of experts after
  // those of layers, then modules_to_save.
  const std::vector<AdapterTensor>& tensors() const { return tensors_; }
  // What the file holds beside them: VeRA's matrices, unless save_projection is off. They are drawn
  // when the adapter is attached.
  const std::vector<FixedTensor>& fixed_tensors() const { return fixed_tensors_; }
  // Weights that train and are not in the file, which holds what they make (kPromptKey): none,
  // or the network of a prefix, in the order of nn::PrefixProjection::parameters().
  const std::vector<nn::Parameter*>& inner_parameters() const { return inner_parameters_; }
  // VeRA's matrices; null: another method.
  const std::shared_ptr<nn::VeraProjection>& projection() const { return projection_; }
  // Gives drawn tensors the precision of the targeted weights, and moves them to the device where
  // the model computes. Call when it is known which weights are quantised, and the others' types.
  void settle_fixed_tensors(at::Device device) const;
  // What adapter_config.json's target_modules holds: the list as given, the expression, or, from 20
  // names on, PEFT's minimal suffixes.
  const std::vector<std::string>& saved_target_modules() const { return saved_target_modules_; }

  // Makes embedding and output layer of the model tensors of the adapter, as PEFT saves them with
  // it when the vocabulary has grown: those whose name in the file `is_wanted`.
  void store_vocabulary(models::Model& model,
                        const std::function<bool(const std::string&)>& is_wanted);

  // Throws FormatError unless `found` (names and shapes of an adapter file) is exactly tensors().
  void check_tensors(const std::vector<std::pair<std::string, std::vector<int64_t>>>& found,
                     const std::string& file) const;

 private:
  friend std::unique_ptr<LoraAdapter> attach_lora(models::Model& model, const LoraOptions& options);
  void attach_layers(models::Model& model);
  void attach_virtual_tokens(models::Model& model);
  LoraOptions options_;
  std::vector<nn::Linear*> layers_;
  std::vector<nn::ExpertParameter*> expert_parameters_;
  nn::Embedding* embedding_ = nullptr;
  std::optional<TrainedTokens> trained_tokens_;
  std::vector<std::string> notes_;
  std::vector<AdapterTensor> tensors_;
  std::vector<FixedTensor> fixed_tensors_;
  std::vector<nn::Parameter*> inner_parameters_;
  std::shared_ptr<nn::VeraProjection> projection_;
  std::vector<std::string> saved_target_modules_;
  std::vector<std::string> targeted_vocabulary_;  // paths of embedding and output layer
};

// Freezes the base, gives the matching layers a branch (fp32) and makes modules_to_save and the
// biases asked for trainable. The adapter refers to the model, which must outlive it. No match:
// ConfigError that lists the modules; settings out of range, a rank larger than the layer, or
// settings that exclude each other: ConfigError.
std::unique_ptr<LoraAdapter> attach_lora(models::Model& model, const LoraOptions& options);

}  // namespace strata::adapters
