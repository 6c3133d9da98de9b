// One adapter over a base whose weights are in memory: a model of its own, of which the base's
// weights are the base's tensors. Owns: the adapter's values, and weights of the base that it
// changes. Never: the base's memory, nor the choice of the adapter.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "strata/adapters/lora.h"
#include "strata/generate/kept_codes.h"
#include "strata/hf/model_folder.h"
#include "strata/models/model.h"
#include "strata/models/quantization.h"

namespace strata::generate {

// The gathered tensors of a base (codes where it is quantised) by the names in its file.
using BaseTensors = std::map<std::string, at::Tensor>;

// A base in memory. `storage_type`: of its plain weights before they were brought to the compute
// type. `quantization`: of its codes, whether the folder holds them or they were made on the way
// in.
struct AdaptableBase {
  const hf::ModelFolder& folder;
  const BaseTensors& tensors;
  at::ScalarType storage_type;
  at::ScalarType compute_type;
  std::optional<models::QuantizationOptions> quantization;
  const KeptCodes& kept_codes;  // those of the folder that were not decoded
};

// Memory: what the adapter's file holds, and the targeted weights of the base again for first
// values that change it (pissa, olora, loftq).
class AdaptedModel {
 public:
  // Errors: those of reading the files; FormatError or ConfigError for an adapter of another base.
  AdaptedModel(const AdaptableBase& base, const std::filesystem::path& adapter);

  models::Model& model() { return merged_ ? *merged_ : *model_; }
  // What is not known of it: the base that it was trained on, keys of its file.
  const std::vector<std::string>& notes() const { return notes_; }
  bool is_merged() const { return merged_ != nullptr; }
  // Folds the adapter into copies of the weights it targets; unmerge() gives them up, so that every
  // weight is what it was, bit for bit. ConfigError over a base in codes of bitsandbytes and for
  // rows before the prompt, which no weight can hold; FormatError for NaN or infinity in a result.
  void merge();
  void unmerge() { merged_ = nullptr; }

 private:
  void attach_base(const hf::ModelFolder& base, const BaseTensors& tensors);
  void change_base(uint64_t seed);
  // The weights of the model with the adapter folded in, by their names in a file: codes where the
  // base holds such of its files and the adapter left them alone. Memory: what the adapter changes
  // once more, and one weight of it in fp32.
  BaseTensors merged_values() const;

  std::filesystem::path folder_;
  std::vector<std::string> notes_;
  at::ScalarType storage_type_, compute_type_;
  at::Device device_ = at::kCPU;
  Json config_;  // config.json of the base, with the adapter's vocabulary
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<adapters::LoraAdapter> adapter_;
  std::unique_ptr<models::Model> merged_;
};

}  // namespace strata::generate
