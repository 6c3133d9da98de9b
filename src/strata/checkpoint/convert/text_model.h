// The language model inside a checkpoint that also reads images or sound (Gemma 3, Mistral Small 3,
// LLaVA), seen as a checkpoint of its own family. Owns: its names and its config.json. Never:
// writing.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/checkpoint/convert/saved_state.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_weight.h"
#include "strata/hf/model_folder.h"
#include "strata/nn/parameter.h"

namespace strata::checkpoint {

class TextModelState final : public SavedState {
 public:
  // `folder`: config.json with a "text_config" of a family that is here. ConfigError for another
  // one, and for codes; FormatError where a weight of the text model is missing or one too many.
  explicit TextModelState(const std::filesystem::path& folder);

  void read(size_t index, std::span<std::byte> out) override;
  std::span<const std::byte> view(size_t index) override;
  void forget(size_t index) override;
  std::string verify() override;

  // config.json of the text model alone.
  const Json& config() const { return config_; }
  // The modules that are not the text model's ("vision_tower"), sorted.
  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  // Elements of a tensor of the folder.
  struct Source {
    std::string tensor;
    int64_t begin, count;
    // Decoded as it is read.
    std::optional<hf::Fp8Weight> fp8;
    std::optional<hf::IntWeight> ints;
  };
  void list_weights();
  void add_weight(const nn::Parameter& parameter, const hf::TensorInfo& info, int64_t begin);
  void add_ints(const nn::Parameter& parameter, const std::string& name, hf::IntWeight ints);

  hf::ModelFolder folder_;
  Json config_;
  std::vector<Source> sources_;  // of tensors()
  std::vector<std::string> left_out_;
};

}  // namespace strata::checkpoint
