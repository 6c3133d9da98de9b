// Oracle: what the reference says of published models: the number of parameters of OPT-125m and
// OPT-350m, its _init_weights.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "strata/models/registry.h"

namespace strata::models {
namespace {

int64_t count(const char* config) {
  int64_t numel = 0;
  const auto model = create_model(parse_json(config, "config.json"), {});
  for (const nn::Parameter* parameter : model->parameters()) numel += parameter->numel();
  return numel;
}

TEST(OptModel, IsAsLargeAsPublished) {
  EXPECT_EQ(count(R"({"model_type": "opt"})"), 125239296);
  EXPECT_EQ(count(R"({"model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24,
    "ffn_dim": 4096, "num_attention_heads": 16, "word_embed_proj_dim": 512,
    "do_layer_norm_before": false})"),
            331196416);
}

TEST(OptModel, InitialValues) {
  const char* const text = R"({"model_type": "opt", "hidden_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "ffn_dim": 128, "vocab_size": 500, "word_embed_proj_dim": 64,
    "init_std": 0.03})";
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
    if (parameter->name().ends_with("embed_tokens.weight")) {
      EXPECT_EQ(full.select(0, 1).abs().max().item<float>(), 0);  // the padding token's
    }
  }
}

}  // namespace
}  // namespace strata::models
