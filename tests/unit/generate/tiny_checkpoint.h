// Writes a random Llama checkpoint of a few thousand weights, and a prompt for it, for tests.
#pragma once

#include <filesystem>
#include <fstream>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include "strata/hf/formats/safetensors.h"
#include "strata/models/registry.h"

namespace strata::generate {

inline constexpr const char* kTinyConfig = R"({"model_type": "llama", "vocab_size": 40,
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 32, "eos_token_id": 2,
    "dtype": "float32"})";

// With states in the place of keys and values in some layers.
inline constexpr const char* kTinyMamba = R"({"model_type": "granitemoehybrid", "vocab_size": 40,
    "hidden_size": 16, "shared_intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 2, "layer_types": ["mamba", "attention", "mamba"],
    "num_local_experts": 0, "mamba_n_heads": 4, "mamba_d_state": 6, "max_position_embeddings": 64,
    "eos_token_id": 2, "dtype": "float32"})";
// With both in every layer.
inline constexpr const char* kTinySideBySide = R"({"model_type": "falcon_h1", "vocab_size": 40,
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "mamba_d_ssm": 24, "mamba_n_heads": 4, "mamba_d_state": 6,
    "max_position_embeddings": 64, "eos_token_id": 2, "dtype": "float32"})";
// With layers that have neither.
inline constexpr const char* kTinySingleModules = R"({"model_type": "nemotron_h", "vocab_size": 40,
    "hidden_size": 16, "intermediate_size": 24, "hybrid_override_pattern": "M-*M",
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "mamba_num_heads": 4,
    "mamba_head_dim": 6, "n_groups": 2, "ssm_state_size": 6, "max_position_embeddings": 64,
    "eos_token_id": 2, "dtype": "float32"})";
inline constexpr const char* kTinyConv = R"({"model_type": "lfm2", "vocab_size": 40,
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "layer_types": ["conv", "full_attention", "conv"],
    "block_multiple_of": 4, "max_position_embeddings": 64, "eos_token_id": 2,
    "dtype": "float32"})";

inline void write_text(const std::filesystem::path& file, std::string_view text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

inline void write_checkpoint(const std::filesystem::path& folder,
                             std::string_view config = kTinyConfig) {
  write_text(folder / "config.json", config);
  const auto model = models::create_model(parse_json(config, "config"), {});
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

// An adapter of `count` rows that stand before every text.
inline void write_prompt(const std::filesystem::path& folder, int64_t count, int64_t columns) {
  write_text(folder / "adapter_config.json",
             fmt::format(R"({{"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM",
                 "num_virtual_tokens": {}, "token_dim": {}}})",
                         count, columns));
  hf::SafetensorsWriter writer(folder / "adapter_model.safetensors",
                               {{"prompt_embeddings", hf::DType::kF32, {count, columns}}});
  const at::Tensor rows = at::full({count, columns}, 0.5);
  writer.write("prompt_embeddings",
               {static_cast<const std::byte*>(rows.const_data_ptr()), rows.nbytes()});
  writer.finish();
}

}  // namespace strata::generate
