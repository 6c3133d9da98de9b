// LoRA adapters: which layers get a low-rank branch, their initial values, names and counts, all as
// PEFT has them. Owns: matching, attaching, initial values. Never: the products (nn/linear.h),
// files (hf/adapter_files.h) or where values lie (shard/).
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
#include "strata/nn/linear.h"

namespace strata::adapters {

struct LoraOptions {
  int64_t r = 8;
  double alpha = 8;
  double dropout = 0.0;
  // A list (a module matches by its full path or by "." + entry at its end) or, when `pattern` is
  // set, a regular expression on the full path (Python syntax) or "all-linear". Neither: the
  // family's default (Llama: q_proj, v_proj).
  std::vector<std::string> target_modules;
  std::optional<std::string> target_pattern;
  // Modules trained whole beside the branches; the base keeps its own copy (PEFT's
  // ModulesToSaveWrapper), so a tied output layer is untied by naming it here.
  std::vector<std::string> modules_to_save;
  bool use_rslora = false;
};

// A trainable weight and the name it has in adapter_model.safetensors.
struct AdapterTensor {
  std::string name;
  nn::Parameter* parameter;
};

class LoraAdapter {
 public:
  const LoraOptions& options() const { return options_; }
  // The layers with a branch, in module order.
  const std::vector<nn::Linear*>& layers() const { return layers_; }
  // All weights that the adapter file holds: branches in module order, then modules_to_save.
  const std::vector<AdapterTensor>& tensors() const { return tensors_; }
  // What adapter_config.json's target_modules holds: the list as given, the expression, or, from 20
  // names on, PEFT's minimal suffixes.
  const std::vector<std::string>& saved_target_modules() const { return saved_target_modules_; }

  // Draws the initial values that PEFT draws after torch.manual_seed(seed): A uniform, B zero;
  // calls `place(parameter, value)` with a whole fp32 CPU tensor for each branch weight in module
  // order. modules_to_save start from the base's values and draw nothing.
  using Place = std::function<void(nn::Parameter&, const at::Tensor&)>;
  void initialize(uint64_t seed, const Place& place) const;

  // Throws FormatError unless `found` (names and shapes of an adapter file) is exactly tensors().
  void check_tensors(const std::vector<std::pair<std::string, std::vector<int64_t>>>& found,
                     const std::string& file) const;

 private:
  friend std::unique_ptr<LoraAdapter> attach_lora(models::Model& model, const LoraOptions& options);
  LoraOptions options_;
  std::vector<nn::Linear*> layers_;
  std::vector<AdapterTensor> tensors_;
  std::vector<std::string> saved_target_modules_;
};

// Freezes the base, gives the matching layers a branch (fp32) and makes modules_to_save trainable.
// The adapter refers to the model, which must outlive it. No match: ConfigError that lists the
// modules; r, alpha or dropout out of range: ConfigError.
std::unique_ptr<LoraAdapter> attach_lora(models::Model& model, const LoraOptions& options);

// "trainable params: 2,048 || all params: 8,752 || trainable%: 23.4004", counted as PEFT counts:
// base copies of modules_to_save included, tied weights once.
std::string trainable_parameters_line(models::Model& model);

}  // namespace strata::adapters
