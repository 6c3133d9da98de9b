// The table of types. Never: weights.
#include "strata/shard/storage_type.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/hf/formats/torch_types.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_weight.h"

namespace strata::shard {

std::string named_type(const Json& model_config) {
  const auto entry = model_config.find(model_config.contains("dtype") ? "dtype" : "torch_dtype");
  if (entry == model_config.end() || !entry->is_string()) return "";
  std::string name = entry->get<std::string>();
  if (name.starts_with("torch.")) name.erase(0, 6);
  return name;
}

std::string type_in_files(const hf::ModelFolder& folder) {
  const std::vector<std::string> scales = hf::fp8_scales(folder);
  for (const std::string& name : hf::names_of_copy(folder)) {
    if (std::ranges::find(scales, name) != scales.end()) continue;
    const auto ints = hf::find_int_weight(folder, name);
    const hf::DType dtype = ints ? ints->dtype() : folder.find(name)->dtype;
    const bool is_known =
        dtype == hf::DType::kF32 || dtype == hf::DType::kBF16 || dtype == hf::DType::kF16;
    if (is_known) return std::string(hf::torch_dtype_of(dtype));
  }
  return "float32";
}

at::ScalarType storage_type_of(const std::string& dtype, const Json& model_config,
                               const std::string& in_files) {
  std::string name = dtype;
  if (dtype == "auto") name = named_type(model_config);
  if (name.empty()) name = in_files;
  if (name == "float32" || name == "fp32") return at::kFloat;
  if (name == "bfloat16" || name == "bf16") return at::kBFloat16;
  if (name == "float16" || name == "fp16") return at::kHalf;
  throw ConfigError(
      "dtype: found \"{}\"{}, expected float32, bfloat16 or float16; pass --dtype with one of them",
      name, dtype == "auto" ? " in config.json" : "");
}

std::string result_dtype(const ResultType& settings) {
  const bool is_computed = settings.save_dtype == "compute";
  if (is_computed && settings.bf16) return "bfloat16";
  if (is_computed && settings.fp16) return "float16";
  if (!is_computed && settings.save_dtype != "auto") return settings.save_dtype;
  return settings.is_adapter ? "" : settings.dtype;
}

}  // namespace strata::shard
