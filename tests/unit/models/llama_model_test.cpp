// Oracle: the reference's named_parameters() order, initial values and ties.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "strata/hf/weight_names.h"
#include "strata/models/registry.h"
#include "strata/nn/linear.h"

namespace strata::models {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<Model> make(bool tied) {
  Json config = parse_json(
      R"({"model_type": "llama", "vocab_size": 19, "hidden_size": 8, "intermediate_size": 12,
          "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_bias": true, "pad_token_id": 3})",
      "config.json");
  config["tie_word_embeddings"] = tied;
  return create_model(config, {});
}

std::vector<std::string> names(const std::vector<nn::Parameter*>& parameters) {
  std::vector<std::string> list;
  for (const nn::Parameter* p : parameters) list.push_back(p->name());
  return list;
}

TEST(LlamaModel, ParametersInTheReferencesOrder) {
  const std::string layer = "model.layers.0.";
  EXPECT_THAT(names(make(/*tied=*/false)->parameters()),
              ElementsAre("model.embed_tokens.weight", layer + "self_attn.q_proj.weight",
                          layer + "self_attn.k_proj.weight", layer + "self_attn.v_proj.weight",
                          layer + "self_attn.o_proj.weight", layer + "mlp.gate_proj.weight",
                          layer + "mlp.gate_proj.bias", layer + "mlp.up_proj.weight",
                          layer + "mlp.up_proj.bias", layer + "mlp.down_proj.weight",
                          layer + "mlp.down_proj.bias", layer + "input_layernorm.weight",
                          layer + "post_attention_layernorm.weight", "model.norm.weight",
                          "lm_head.weight"));
}

// Files say by names alone what a buffer is (hf/weight_names.h), models by their parameters.
TEST(LlamaModel, BuffersAreThoseThatFilesCallSo) {
  const std::pair<const char*, const char*> families[] = {
      {R"({"model_type": "glm4_moe", "n_routed_experts": 4})",
       "model.layers.1.mlp.gate.e_score_correction_bias"},
      {R"({"model_type": "dots1", "n_routed_experts": 4, "n_shared_experts": 1,
           "first_k_dense_replace": 1})",
       "model.layers.1.mlp.gate.e_score_correction_bias"},
      {R"({"model_type": "exaone_moe", "num_experts": 4})",
       "model.layers.1.mlp.gate.e_score_correction_bias"},
      {R"({"model_type": "ernie4_5_moe", "moe_num_experts": 4})",
       "model.layers.1.mlp.gate.moe_statics.e_score_correction_bias"},
      {R"({"model_type": "minimax_m2", "num_local_experts": 4, "num_hidden_layers": 1})",
       "model.layers.0.block_sparse_moe.e_score_correction_bias"},
      {R"({"model_type": "lfm2_moe", "num_experts": 4, "num_dense_layers": 1,
           "layer_types": ["conv", "full_attention"]})",
       "model.layers.1.feed_forward.expert_bias"}};
  for (const auto& [settings, buffer] : families) {
    Json config = parse_json(
        R"({"vocab_size": 19, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 6})",
        "config.json");
    config.update(parse_json(settings, "config.json"));
    std::vector<std::string> buffers;
    const auto model = create_model(config, {});
    for (const nn::Parameter* p : model->parameters()) {
      EXPECT_EQ(p->is_buffer(), hf::is_buffer(p->name())) << p->name();
      if (p->is_buffer()) buffers.push_back(p->name());
    }
    EXPECT_THAT(buffers, ElementsAre(buffer)) << settings;
  }
}

TEST(LlamaModel, TiedWeightIsInBothBlocksButListedOnce) {
  const auto model = make(/*tied=*/true);
  const auto blocks = model->blocks();
  EXPECT_EQ(blocks.front()->parameters().back(), blocks.back()->parameters().back());
  EXPECT_EQ(names(model->parameters()).back(), "model.norm.weight");
}

TEST(LlamaModel, TrainableCopyUnties) {
  const auto model = make(/*tied=*/true);
  for (nn::Parameter* p : model->parameters()) p->set_requires_grad(false);
  nn::Parameter& head = model->trainable_copy("lm_head.weight");
  EXPECT_EQ(head.name(), "lm_head.weight");
  EXPECT_TRUE(head.requires_grad());
  EXPECT_FALSE(model->parameters().front()->requires_grad());
  EXPECT_EQ(model->num_replaced_elements(), 0);
  model->trainable_copy("model.embed_tokens.weight");
  EXPECT_EQ(model->num_replaced_elements(), 19 * 8);
}

TEST(LlamaModel, InitialValues) {
  const auto model = make(/*tied=*/false);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
  for (const nn::Parameter* p : model->parameters()) {
    const at::Tensor full = at::full(p->shape(), std::nan(""));
    model->init_weight(*p, full, generator);
    const bool is_norm = p->name().find("norm") != std::string::npos;
    const bool is_bias = p->name().ends_with(".bias");
    if (is_norm) {
      EXPECT_TRUE(at::equal(full, at::ones_like(full))) << p->name();
    } else if (is_bias) {
      EXPECT_TRUE(at::equal(full, at::zeros_like(full))) << p->name();
    } else {
      EXPECT_NEAR(full.std().item<double>(), 0.02, 0.01) << p->name();
    }
    if (p->name() == "model.embed_tokens.weight") {
      EXPECT_TRUE(at::equal(full[3], at::zeros({8})));
    }
  }
}

TEST(GemmaModel, NormsBeginAtDistanceZeroFromOne) {
  const auto model = create_model(
      parse_json(
          R"({"model_type": "gemma", "vocab_size": 19, "hidden_size": 8, "intermediate_size": 12,
          "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
          "head_dim": 6})",
          "config.json"),
      {});
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  for (const nn::Parameter* p : model->parameters()) {
    const at::Tensor full = at::full(p->shape(), 7.0);
    model->init_weight(*p, full, generator);
    const bool is_norm = p->name().find("norm") != std::string::npos;
    if (is_norm) {
      EXPECT_TRUE(at::equal(full, at::zeros_like(full))) << p->name();
    }
    if (!is_norm) {
      EXPECT_NEAR(full.std().item<double>(), 0.02, 0.01) << p->name();
    }
  }
  EXPECT_EQ(names(model->parameters()).back(), "model.norm.weight");
}

}  // namespace
}  // namespace strata::models
