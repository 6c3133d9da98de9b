// Oracle: what the reference says of published models: the number of parameters of Falcon-7B,
// Falcon-40B, BLOOM-560m, BLOOMZ-7B1 and MPT-7B, their buffers, its _init_weights.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "strata/models/registry.h"

namespace strata::models {
namespace {

struct Published {
  const char* name;
  const char* config;
  int64_t numel;
  int64_t buffer_bytes;
};

constexpr Published kPublished[] = {
    {"Falcon-7B", R"({"model_type": "falcon"})", 6921720704, 256},
    {"Falcon-40B", R"({"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60,
        "num_attention_heads": 128, "num_kv_heads": 8, "new_decoder_architecture": true})",
     41303293952, 256},
    {"BLOOM-560m", R"({"model_type": "bloom", "n_embed": 1024, "n_layer": 24,
        "num_attention_heads": 16})",
     559214592, 0},
    {"BLOOMZ-7B1", R"({"model_type": "bloom", "hidden_size": 4096, "n_layer": 30, "n_head": 32})",
     7069016064, 0},
    {"MPT-7B", R"({"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32,
        "vocab_size": 50432})",
     6649286656, 0},
};

TEST(FalconModel, IsAsLargeAsPublished) {
  for (const Published& published : kPublished) {
    const auto model = create_model(parse_json(published.config, "config.json"), {});
    int64_t numel = 0;
    for (const nn::Parameter* parameter : model->parameters()) numel += parameter->numel();
    EXPECT_EQ(numel, published.numel) << published.name;
    EXPECT_EQ(model->buffer_bytes(), published.buffer_bytes) << published.name;
  }
}

TEST(FalconModel, InitialValues) {
  const char* const text = R"({"model_type": "bloom", "hidden_size": 96, "n_layer": 2, "n_head": 4,
    "vocab_size": 500, "initializer_range": 0.03})";
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
