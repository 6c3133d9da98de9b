// Oracle: what the reference says of the published models: get_memory_footprint() of StarCoder in 8
// bits, the number of GPT-2's parameters, _init_weights of both.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "strata/models/footprint.h"
#include "strata/models/quantization.h"
#include "strata/models/registry.h"

namespace strata::models {
namespace {

const char* const kStarCoder = R"({"model_type": "gpt_bigcode", "activation_function": "gelu",
  "attention_softmax_in_fp32": true, "multi_query": true, "n_embd": 6144, "n_head": 48,
  "n_inner": 24576, "n_layer": 40, "n_positions": 8192, "scale_attention_softmax_in_fp32": true,
  "vocab_size": 49152})";

TEST(Gpt2Model, StarCoderInEightBitsIsAsLargeAsPublished) {
  const auto model = create_model(parse_json(kStarCoder, "config.json"), {.storage = at::kHalf});
  for (nn::Parameter* parameter : model->parameters()) parameter->set_requires_grad(false);
  QuantizationOptions options;
  options.quantization.format.kind = ops::quant::Kind::kInt8;
  EXPECT_EQ(quantize_base(*model, options), 4 * 40);
  EXPECT_NEAR(static_cast<double>(memory_footprint_bytes(*model)) / 1e6, 15939.61, 5e-3);
}

TEST(Gpt2Model, DefaultsAreThoseOfTheSmallestGpt2) {
  const auto model = create_model(parse_json(R"({"model_type": "gpt2"})", "config.json"), {});
  int64_t numel = 0;
  for (const nn::Parameter* parameter : model->parameters()) numel += parameter->numel();
  EXPECT_EQ(numel, 124439808);
  EXPECT_EQ(model->max_position_embeddings(), 1024);
}

TEST(Gpt2Model, WhatIsAddedToTheStreamBeginsSmaller) {
  for (const char* type : {"gpt2", "gpt_bigcode"}) {
    const std::string text =
        std::string(R"({"model_type": ")") + type + R"(", "n_embd": 96, "n_layer": 8})";
    const auto model = create_model(parse_json(text, "config.json"), {});
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
    for (const nn::Parameter* parameter : model->parameters()) {
      at::Tensor full = at::empty(parameter->shape());
      model->init_weight(*parameter, full, generator);
      const std::string& name = parameter->name();
      if (name.ends_with(".bias")) {
        EXPECT_EQ(full.abs().max().item<float>(), 0) << name;
      } else if (full.dim() == 1) {
        EXPECT_EQ(full.min().item<float>(), 1) << name;
      } else {
        const double expected = name.ends_with("c_proj.weight") ? 0.02 / 4 : 0.02;
        EXPECT_NEAR(full.std().item<double>(), expected, 0.05 * expected) << name;
      }
    }
  }
}

}  // namespace
}  // namespace strata::models
