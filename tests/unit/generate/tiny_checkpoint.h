// Writes a random Llama checkpoint of a few thousand weights, for tests.
#pragma once

#include <filesystem>
#include <fstream>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "strata/hf/safetensors.h"
#include "strata/models/registry.h"

namespace strata::generate {

inline constexpr const char* kTinyConfig = R"({"model_type": "llama", "vocab_size": 40,
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 32, "eos_token_id": 2,
    "dtype": "float32"})";

inline void write_text(const std::filesystem::path& file, std::string_view text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

inline void write_checkpoint(const std::filesystem::path& folder) {
  write_text(folder / "config.json", kTinyConfig);
  const auto model = models::create_model(parse_json(kTinyConfig, "config"), {});
  std::vector<hf::TensorSpec> specs;
  for (const nn::Parameter* parameter : model->parameters()) {
    specs.push_back({parameter->name(), hf::DType::kF32, parameter->shape()});
  }
  hf::SafetensorsWriter writer(folder / "model.safetensors", std::move(specs));
  const at::Generator generator = at::detail::createCPUGenerator(5);
  for (const nn::Parameter* parameter : model->parameters()) {
    const at::Tensor value = at::empty(parameter->shape()).normal_(0, 0.4, generator);
    writer.write(parameter->name(),
                 {static_cast<const std::byte*>(value.const_data_ptr()), value.nbytes()});
  }
  writer.finish();
}

}  // namespace strata::generate
