// Oracle: what the reference says of published models: the number of parameters of Pythia-70m and
// GPT-NeoX-20B, its buffers, its _init_weights.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "strata/models/registry.h"

namespace strata::models {
namespace {

int64_t count(Model& model) {
  int64_t numel = 0;
  for (const nn::Parameter* parameter : model.parameters()) numel += parameter->numel();
  return numel;
}

TEST(GptNeoXModel, DefaultsAreThoseOfGptNeoX20B) {
  const auto model = create_model(parse_json(R"({"model_type": "gpt_neox"})", "config.json"), {});
  EXPECT_EQ(count(*model), 20554567680);
  EXPECT_EQ(model->max_position_embeddings(), 2048);
  EXPECT_EQ(model->buffer_bytes(), 2 * 12 * 4);  // a quarter of 96 channels
}

TEST(GptNeoXModel, PythiaIsAsLargeAsPublished) {
  const char* const pythia = R"({"model_type": "gpt_neox", "hidden_size": 512,
    "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048,
    "vocab_size": 50304, "rotary_pct": 0.25, "rotary_emb_base": 10000})";
  EXPECT_EQ(count(*create_model(parse_json(pythia, "config.json"), {})), 70426624);
}

TEST(GptNeoXModel, InitialValues) {
  const char* const text = R"({"model_type": "gpt_neox", "hidden_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 500,
    "initializer_range": 0.03})";
  const auto model = create_model(parse_json(text, "config.json"), {});
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
  for (const nn::Parameter* parameter : model->parameters()) {
    at::Tensor full = at::empty(parameter->shape());
    model->init_weight(*parameter, full, generator);
    if (parameter->name().ends_with(".bias")) {
      EXPECT_EQ(full.abs().max().item<float>(), 0) << parameter->name();
    } else if (full.dim() == 1) {
      EXPECT_EQ(full.min().item<float>(), 1) << parameter->name();
    } else {
      EXPECT_NEAR(full.std().item<double>(), 0.03, 0.05 * 0.03) << parameter->name();
    }
  }
}

}  // namespace
}  // namespace strata::models
