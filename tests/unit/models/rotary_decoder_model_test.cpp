// Oracle: what the reference says of published models: the number of parameters of StarCoder2-3B,
// Command R, Command R7B, Phi-1.5, Phi-2, StableLM-3B, StableLM-2-1.6B, OLMo-7B, OLMo-1B,
// Minitron-4B, Jais-2-8B, GPT-J-6B and GPT-Neo, their buffers, its _init_weights.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "strata/models/registry.h"
#include "strata/models/rotary_decoder/config.h"

namespace strata::models {
namespace {

struct Published {
  const char* name;
  const char* config;
  int64_t numel;
  int64_t buffer_bytes;
};

constexpr Published kPublished[] = {
    {"StarCoder2-3B", R"({"model_type": "starcoder2"})", 3030371328, 512},
    {"Command R", R"({"model_type": "cohere"})", 34980831232, 512},
    {"Command R7B", R"({"model_type": "cohere2", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336})",
     8028033024, 512},
    {"Phi-1.5", R"({"model_type": "phi"})", 1418270720, 128},
    {"Phi-2", R"({"model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 32, "partial_rotary_factor": 0.4})",
     2779683840, 128},
    {"StableLM-3B", R"({"model_type": "stablelm"})", 2795443200, 80},
    {"StableLM-2-1.6B", R"({"model_type": "stablelm", "hidden_size": 2048, "num_hidden_layers": 24,
        "intermediate_size": 5632, "vocab_size": 100352, "use_qkv_bias": true})",
     1644515328, 64},
    {"OLMo-7B", R"({"model_type": "olmo"})", 6888095744, 512},
    {"OLMo-1B", R"({"model_type": "olmo", "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 16, "intermediate_size": 8192, "tie_word_embeddings": true})",
     1176764416, 512},
    {"Minitron-4B", R"({"model_type": "nemotron", "hidden_size": 3072, "intermediate_size": 9216,
        "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128})",
     4190509056, 256},
    {"Jais-2-8B", R"({"model_type": "jais2"})", 8090401280, 512},
    {"GPT-J-6B", R"({"model_type": "gptj"})", 6050882784, 14680064},
    {"GPT-Neo-1.3B", R"({"model_type": "gpt_neo"})", 1315575808, 100663296},
    {"GPT-Neo-125M", R"({"model_type": "gpt_neo", "hidden_size": 768, "num_layers": 12,
        "num_heads": 12, "attention_types": [[["global", "local"], 6]]})",
     125198592, 50331648},
};

TEST(RotaryDecoderModel, IsAsLargeAsPublished) {
  for (const Published& published : kPublished) {
    const auto model = create_model(parse_json(published.config, "config.json"), {});
    int64_t numel = 0;
    for (const nn::Parameter* parameter : model->parameters()) numel += parameter->numel();
    EXPECT_EQ(numel, published.numel) << published.name;
    EXPECT_EQ(model->buffer_bytes(), published.buffer_bytes) << published.name;
  }
}

TEST(RotaryDecoderModel, InitialValues) {
  constexpr const char* kModels[] = {
      R"({"model_type": "cohere", "use_qk_norm": true, "pad_token_id": 3, "hidden_size": 96,
          "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
          "vocab_size": 500, "initializer_range": 0.03})",
      R"({"model_type": "stablelm", "qk_layernorm": true, "use_qkv_bias": true,
          "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 500,
          "initializer_range": 0.03, "pad_token_id": 3, "partial_rotary_factor": 0.5})",
      R"({"model_type": "nemotron", "hidden_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 500,
          "initializer_range": 0.03, "pad_token_id": 3, "attention_bias": true})",
      R"({"model_type": "olmo", "hidden_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 500,
          "initializer_range": 0.03, "pad_token_id": 3})"};
  for (const char* text : kModels) {
    const auto model = create_model(parse_json(text, "config.json"), {});
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
    for (const nn::Parameter* parameter : model->parameters()) {
      const std::string& name = parameter->name();
      at::Tensor full = at::empty(parameter->shape());
      model->init_weight(*parameter, full, generator);
      if (name.ends_with(".bias")) {
        EXPECT_EQ(full.abs().max().item<float>(), 0) << name;
      } else if (name.find("norm") != std::string::npos) {
        EXPECT_EQ(full.min().item<float>(), 1) << name;
        EXPECT_EQ(full.max().item<float>(), 1) << name;
      } else {
        EXPECT_NEAR(full.std().item<double>(), 0.03, 0.05 * 0.03) << name;
      }
      if (name == "model.embed_tokens.weight") {
        EXPECT_EQ(full.select(0, 3).abs().max().item<float>(), 0);
      }
    }
  }
}

// As GPTJConfig(n_embd=32, hidden_size=64).n_embd in transformers.
TEST(GptjConfig, TakesTheSharedNameOfASizeThatHasTwo) {
  const auto size_of = [](const char* config) {
    return parse_gptj_config(parse_json(config, "config.json")).hidden_size;
  };
  EXPECT_EQ(size_of(R"({"n_embd": 32, "hidden_size": 64, "n_head": 4, "rotary_dim": 4})"), 64);
  EXPECT_EQ(size_of(R"({"n_embd": 32, "n_head": 4, "rotary_dim": 4})"), 32);
}

}  // namespace
}  // namespace strata::models
