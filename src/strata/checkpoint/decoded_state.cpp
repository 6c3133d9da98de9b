#include "strata/checkpoint/decoded_state.h"

#include <cstring>
#include <optional>
#include <set>

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/hf/bitsandbytes.h"
#include "strata/hf/model_folder.h"
#include "strata/hf/torch_types.h"
#include "strata/models/quantization.h"
#include "strata/shard/loading.h"
#include "strata/shard/quantized_loading.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

class DecodedState final : public SavedState {
 public:
  explicit DecodedState(const fs::path& path)
      : SavedState(path), folder_(path), options_(*models::stored_quantization(folder_.config())) {
    facts_.format = "Hugging Face model, quantised by bitsandbytes";
    std::set<std::string> companions;
    for (const std::string& name : folder_.names()) {
      if (!hf::find_quantized_weight(folder_, name)) continue;
      for (std::string& companion : hf::quantized_companions(folder_, name)) {
        companions.insert(std::move(companion));
      }
    }
    for (const std::string& name : folder_.names()) {
      if (!companions.contains(name)) add(name);
    }
  }

  void read(size_t index, std::span<std::byte> out) override {
    const SavedTensor& tensor = tensors_[index];
    const auto stored = hf::find_quantized_weight(folder_, tensor.weight);
    if (!stored) {
      const std::span<const std::byte> bytes = folder_.bytes(*folder_.find(tensor.weight));
      std::memcpy(out.data(), bytes.data(), bytes.size());
      return;
    }
    nn::Parameter parameter(tensor.weight, stored->shape, at::kFloat);
    parameter.set_requires_grad(false);
    nn::Quantization quantization = options_.quantization;
    if (quantization.format.kind != ops::quant::Kind::kInt8) {
      quantization.format = {.kind = ops::quant::parse_kind(stored->kind, "quant_state"),
                             .block = stored->blocksize,
                             .nested = stored->nested != nullptr};
    }
    parameter.set_quantization(quantization);
    const at::Tensor codes = shard::stored_codes(folder_, tensor.weight, parameter);
    const at::Tensor values =
        ops::quant::dequantize({quantization.format, stored->shape[0], stored->shape[1], codes},
                               shard::scalar_type_of(tensor.dtype, tensor.weight));
    std::memcpy(out.data(), values.const_data_ptr(), values.nbytes());
  }

  std::string verify() override { return "nothing: the format has no checksums"; }

 private:
  void add(const std::string& name) {
    const hf::TensorInfo& info = *folder_.find(name);
    SavedTensor tensor;
    tensor.kind = kParameter;
    tensor.weight = name;
    tensor.dtype = info.dtype;
    tensor.shape = info.shape;
    if (const auto stored = hf::find_quantized_weight(folder_, name)) {
      tensor.shape = stored->shape;
      tensor.dtype = hf::dtype_of_torch_dtype(stored->dtype).value_or(hf::DType::kF32);
      // 8 bits do not say what they were, and are made of fp16: the model's type counts.
      if (options_.quantization.format.kind == ops::quant::Kind::kInt8) {
        tensor.dtype = type_of_model().value_or(tensor.dtype);
      }
    }
    tensors_.push_back(std::move(tensor));
  }

  std::optional<hf::DType> type_of_model() const {
    const Json& config = folder_.config();
    const auto entry = config.find(config.contains("dtype") ? "dtype" : "torch_dtype");
    if (entry == config.end() || !entry->is_string()) return {};
    return hf::dtype_of_torch_dtype(entry->get<std::string>());
  }

  hf::ModelFolder folder_;
  models::QuantizationOptions options_;
};

}  // namespace

bool is_quantized_folder(const fs::path& folder) {
  if (!fs::is_regular_file(folder / "config.json")) return false;
  const Json config = read_json_file(folder / "config.json");
  return config.is_object() && config.contains("quantization_config");
}

std::unique_ptr<SavedState> open_decoded_state(const fs::path& folder) {
  return std::make_unique<DecodedState>(folder);
}

}  // namespace strata::checkpoint
