#include "strata/checkpoint/convert/decoded_state.h"

#include <cstring>
#include <set>

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/checkpoint/base_mark.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/hf/formats/torch_types.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_form.h"
#include "strata/hf/mxfp4.h"
#include "strata/models/gpt2/config.h"
#include "strata/shard/loading.h"
#include "strata/shard/mxfp4_loading.h"
#include "strata/shard/quantized_loading.h"
#include "strata/shard/storage_type.h"

namespace strata::checkpoint {

namespace fs = std::filesystem;

DecodedState::DecodedState(const fs::path& folder)
    : SavedState(folder),
      folder_(folder),
      options_(models::stored_quantization(folder_.config()).value()) {
  facts_.format = "Hugging Face model, quantised by bitsandbytes";
  facts_.base_fingerprint = base_mark(folder_);
  std::set<std::string> companions;
  for (const std::string& name : folder_.names()) {
    if (!hf::find_quantized_weight(folder_, name)) continue;
    if (models::is_conv1d_weight(folder_.config(), name)) {
      throw ConfigError(
          "{}: found \"{}\" as codes, expected GPT-2's plain weights, which its files hold as [in, "
          "out] and codes as [out, in]; use the checkpoint that was quantised",
          folder.string(), name);
    }
    for (std::string& companion : hf::quantized_companions(folder_, name)) {
      companions.insert(std::move(companion));
    }
  }
  for (const std::string& name : folder_.names()) {
    if (!companions.contains(name)) tensors_.push_back(described(name));
  }
}

void DecodedState::read(size_t index, std::span<std::byte> out) {
  const SavedTensor& tensor = tensors_[index];
  if (!tensor.is_decoded) {
    const std::span<const std::byte> bytes = folder_.bytes(*folder_.find(tensor.weight));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return;
  }
  const at::Tensor values =
      decode(tensor.weight, shard::scalar_type_of(tensor.dtype, tensor.weight));
  std::memcpy(out.data(), values.const_data_ptr(), values.nbytes());
}

std::string DecodedState::verify() { return "nothing: the format has no checksums"; }

at::Tensor DecodedState::decode(const std::string& weight, at::ScalarType type) const {
  const auto stored = hf::find_quantized_weight(folder_, weight);
  nn::Parameter parameter(weight, stored.value().shape, at::kFloat);
  parameter.set_requires_grad(false);
  nn::Quantization quantization = options_.quantization;
  quantization.format = format_of(weight);
  parameter.set_quantization(quantization);
  const at::Tensor codes = shard::stored_codes(folder_, weight, parameter);
  return ops::quant::dequantize({quantization.format, stored->shape[0], stored->shape[1], codes},
                                type);
}

at::Tensor DecodedState::quantize_again(const std::string& weight, const at::Tensor& values) const {
  return ops::quant::dequantize(ops::quant::quantize(values.contiguous(), format_of(weight)),
                                at::kFloat);
}

ops::quant::Format DecodedState::format_of(const std::string& weight) const {
  const auto stored = hf::find_quantized_weight(folder_, weight);
  const ops::quant::Format of_model = options_.quantization.format;
  if (of_model.kind == ops::quant::Kind::kInt8) return of_model;
  return {.kind = ops::quant::parse_kind(stored.value().kind, "quant_state"),
          .block = stored->blocksize,
          .nested = stored->nested != nullptr};
}

SavedTensor DecodedState::described(const std::string& name) const {
  const hf::TensorInfo& info = *folder_.find(name);
  SavedTensor tensor{.kind = kParameter, .weight = name, .dtype = info.dtype, .shape = info.shape};
  const auto stored = hf::find_quantized_weight(folder_, name);
  if (!stored) return tensor;
  tensor.is_decoded = true;
  tensor.shape = stored->shape;
  tensor.dtype = hf::dtype_of_torch_dtype(stored->dtype).value_or(hf::DType::kF32);
  // 8 bits do not say what they were, and are made of fp16: the model's type counts.
  if (options_.quantization.format.kind == ops::quant::Kind::kInt8) {
    tensor.dtype = type_of_model().value_or(tensor.dtype);
  }
  return tensor;
}

std::optional<hf::DType> DecodedState::type_of_model() const {
  return hf::dtype_of_torch_dtype(shard::named_type(folder_.config()));
}

UnpackedState::UnpackedState(const fs::path& folder) : SavedState(folder), folder_(folder) {
  constexpr std::string_view kBlocks = "_blocks";
  facts_.format = "Hugging Face model, partly in MXFP4";
  facts_.base_fingerprint = base_mark(folder_);
  const std::vector<std::string> parts = hf::mxfp4_parts(folder_);
  const std::set<std::string> packed(parts.begin(), parts.end());
  for (const std::string& name : folder_.names()) {
    const hf::TensorInfo& info = *folder_.find(name);
    if (!packed.contains(name)) {
      tensors_.push_back(
          {.kind = kParameter, .weight = name, .dtype = info.dtype, .shape = info.shape});
    } else if (name.ends_with(kBlocks)) {
      const std::string weight = name.substr(0, name.size() - kBlocks.size());
      tensors_.push_back({.kind = kParameter,
                          .weight = weight,
                          .dtype = hf::DType::kBF16,
                          .shape = hf::find_mxfp4_weight(folder_, weight).value().shape});
    }
  }
}

void UnpackedState::read(size_t index, std::span<std::byte> out) {
  const SavedTensor& tensor = tensors_[index];
  if (const hf::TensorInfo* info = folder_.find(tensor.weight)) {
    const std::span<const std::byte> bytes = folder_.bytes(*info);
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return;
  }
  const auto numel = static_cast<int64_t>(out.size() / hf::size_of(tensor.dtype));
  shard::read_mxfp4(folder_, hf::find_mxfp4_weight(folder_, tensor.weight).value(), /*begin=*/0,
                    at::from_blob(out.data(), {numel}, at::kBFloat16));
}

std::string UnpackedState::verify() { return "nothing: the format has no checksums"; }

namespace {

Json config_in(const fs::path& folder) {
  if (!fs::is_regular_file(folder / "config.json")) return Json::object();
  return read_json_file(folder / "config.json");
}

}  // namespace

bool is_quantized_folder(const fs::path& folder) { return hf::announces_codes(config_in(folder)); }

bool is_decoded_folder(const fs::path& folder) {
  const Json config = config_in(folder);
  return hf::announces_fp8(config) || hf::announces_ints(config);
}

}  // namespace strata::checkpoint
