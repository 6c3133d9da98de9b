// A Hugging Face folder whose weights bitsandbytes stored as codes, or some of them are in MXFP4,
// seen as plain weights. Never: writing.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "strata/checkpoint/convert/saved_state.h"
#include "strata/hf/model_folder.h"
#include "strata/models/quantization.h"

namespace strata::checkpoint {

// Whether the folder's config.json says that it holds codes.
bool is_quantized_folder(const std::filesystem::path& folder);

// Whether it says that they are in fp8 or integers, which every reader decodes.
bool is_decoded_folder(const std::filesystem::path& folder);

// Tensors decoded to the type they had before; scales and tables are left out.
class DecodedState final : public SavedState {
 public:
  // Throws as models::stored_quantization() and hf::find_quantized_weight() do.
  explicit DecodedState(const std::filesystem::path& folder);

  void read(size_t index, std::span<std::byte> out) override;
  std::string verify() override;

  // The whole matrix of which the folder holds codes, in `type`: scale times code, rounded once.
  at::Tensor decode(const std::string& weight, at::ScalarType type) const;
  // What is left of such a matrix when `values` [rows, columns], fp32, take its place: quantised as
  // it is, and decoded, fp32.
  at::Tensor quantize_again(const std::string& weight, const at::Tensor& values) const;

 private:
  ops::quant::Format format_of(const std::string& weight) const;
  SavedTensor described(const std::string& name) const;
  std::optional<hf::DType> type_of_model() const;

  hf::ModelFolder folder_;
  models::QuantizationOptions options_;
};

// The same of a folder that holds some weights in MXFP4: they are bf16, in which every value of
// such codes is exact.
class UnpackedState final : public SavedState {
 public:
  explicit UnpackedState(const std::filesystem::path& folder);

  void read(size_t index, std::span<std::byte> out) override;
  std::string verify() override;

 private:
  hf::ModelFolder folder_;
};

}  // namespace strata::checkpoint
