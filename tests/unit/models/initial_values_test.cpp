// Oracle: the reference's _init_weights of families whose layers begin with more than normal
// values, zeros and ones.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "strata/models/registry.h"

namespace strata::models {
namespace {

using Check = std::function<void(const std::string& name, const at::Tensor& full)>;

void for_each_weight(const char* config, const Check& check) {
  const auto model = create_model(parse_json(config, "config.json"), {});
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
  for (const nn::Parameter* parameter : model->parameters()) {
    at::Tensor full = at::empty(parameter->shape());
    model->init_weight(*parameter, full, generator);
    check(parameter->name(), full);
  }
}

void expect_all(const std::string& name, const at::Tensor& full, float value) {
  EXPECT_EQ(full.min().item<float>(), value) << name;
  EXPECT_EQ(full.max().item<float>(), value) << name;
}

TEST(InitialValues, OfLinearAttention) {
  int num_rates = 0;
  for_each_weight(
      R"({"model_type": "qwen3_5_text", "num_hidden_layers": 2, "hidden_size": 96,
      "vocab_size": 300, "intermediate_size": 130, "initializer_range": 0.03,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
      "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 256})",
      [&](const std::string& name, const at::Tensor& full) {
        if (name.ends_with(".A_log")) {
          // log of what is spread evenly from 0.01 to 16.
          const at::Tensor rates = full.exp();
          EXPECT_GE(rates.min().item<float>(), 0.0099F);
          EXPECT_LE(rates.max().item<float>(), 16.001F);
          EXPECT_NEAR(rates.mean().item<double>(), 8.0, 1.0);
          EXPECT_NEAR(rates.std().item<double>(), 16 / std::sqrt(12.0), 0.5);
          ++num_rates;
        } else if (name.ends_with(".dt_bias") || name.ends_with(".linear_attn.norm.weight")) {
          expect_all(name, full, 1);
        } else if (full.dim() == 1) {
          expect_all(name, full, 0);  // norms whose weight is what they add to 1
        } else {
          EXPECT_NEAR(full.std().item<double>(), 0.03, 0.07 * 0.03) << name;
        }
      });
  EXPECT_EQ(num_rates, 1);
}

TEST(InitialValues, OfGemma4) {
  for_each_weight(R"({"model_type": "gemma4_text", "num_hidden_layers": 2, "hidden_size": 96,
      "vocab_size": 300, "vocab_size_per_layer_input": 300, "intermediate_size": 130,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "global_head_dim": 64,
      "hidden_size_per_layer_input": 16, "initializer_range": 0.03, "pad_token_id": 7,
      "enable_moe_block": true, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 40,
      "layer_types": ["sliding_attention", "full_attention"]})",
                  [&](const std::string& name, const at::Tensor& full) {
                    if (full.dim() == 1) {
                      expect_all(name, full, 1);
                      return;
                    }
                    EXPECT_NEAR(full.std().item<double>(), 0.03, 0.07 * 0.03) << name;
                    if (name.find("embed_tokens") != std::string::npos) {
                      EXPECT_EQ(full[7].abs().max().item<float>(), 0) << name;
                    }
                  });
}

TEST(InitialValues, OfMamba) {
  for_each_weight(
      R"({"model_type": "granitemoehybrid", "num_hidden_layers": 2, "hidden_size": 96,
      "vocab_size": 300, "intermediate_size": 60, "shared_intermediate_size": 130,
      "initializer_range": 0.03, "num_attention_heads": 4, "layer_types": ["mamba", "attention"],
      "mamba_n_heads": 8, "mamba_proj_bias": true, "num_local_experts": 4})",
      [&](const std::string& name, const at::Tensor& full) {
        if (name.ends_with(".A_log")) {
          for (int64_t h = 0; h < 8; ++h) {
            EXPECT_FLOAT_EQ(full[h].item<float>(), std::log(static_cast<float>(h + 1)));
          }
        } else if (name.ends_with(".bias")) {
          expect_all(name, full, 0);
        } else if (full.dim() == 1) {
          expect_all(name, full, 1);
        } else {
          EXPECT_NEAR(full.std().item<double>(), 0.03, 0.07 * 0.03) << name;
        }
      });
}

TEST(InitialValues, OfBambaAndFalconH1) {
  for (const char* config :
       {R"({"model_type": "bamba", "num_hidden_layers": 2, "hidden_size": 96, "vocab_size": 300,
      "intermediate_size": 130, "initializer_range": 0.03, "num_attention_heads": 4,
      "num_key_value_heads": 4, "pad_token_id": null, "attn_layer_indices": [1],
      "mamba_n_heads": 8, "mamba_proj_bias": true, "mlp_bias": true})",
        R"({"model_type": "falcon_h1", "num_hidden_layers": 1, "hidden_size": 96, "vocab_size": 300,
      "intermediate_size": 130, "initializer_range": 0.03, "num_attention_heads": 4,
      "num_key_value_heads": 4, "pad_token_id": null, "mamba_d_ssm": 160, "mamba_n_heads": 8,
      "mamba_rms_norm": true, "projectors_bias": true})"}) {
    for_each_weight(config, [&](const std::string& name, const at::Tensor& full) {
      if (name.ends_with(".A_log")) {
        for (int64_t h = 0; h < 8; ++h) {
          EXPECT_FLOAT_EQ(full[h].item<float>(), std::log(static_cast<float>(h + 1)));
        }
      } else if (name.ends_with(".bias")) {
        expect_all(name, full, 0);
      } else if (full.dim() == 1) {
        expect_all(name, full, 1);
      } else {
        EXPECT_NEAR(full.std().item<double>(), 0.03, 0.07 * 0.03) << name;
      }
    });
  }
}

// Of the logarithm of the steps that softplus makes of biases, drawn evenly between two bounds.
void expect_steps(const at::Tensor& bias, double least, double most) {
  const at::Tensor steps = bias.exp().log1p(), logs = steps.log();
  EXPECT_GE(steps.min().item<double>(), 0.99 * least);
  EXPECT_LE(steps.max().item<double>(), 1.01 * most);
  const double width = std::log(most) - std::log(least);
  EXPECT_NEAR(logs.mean().item<double>(), (std::log(most) + std::log(least)) / 2, 0.1 * width);
  EXPECT_NEAR(logs.std().item<double>(), width / std::sqrt(12.0), 0.1 * width);
}

TEST(InitialValues, OfNemotronH) {
  int num_narrowed = 0;
  for_each_weight(R"({"model_type": "nemotron_h", "hybrid_override_pattern": "M*E-",
      "hidden_size": 96, "vocab_size": 300, "intermediate_size": 130, "initializer_range": 0.03,
      "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24, "mamba_num_heads": 256,
      "mamba_head_dim": 2, "n_groups": 2, "ssm_state_size": 16, "n_routed_experts": 16,
      "moe_intermediate_size": 130, "moe_shared_expert_intermediate_size": 130,
      "time_step_min": 0.002, "time_step_max": 0.2})",
                  [&](const std::string& name, const at::Tensor& full) {
                    if (name.ends_with(".dt_bias")) {
                      expect_steps(full, 0.002, 0.2);
                    } else if (name.ends_with(".A_log")) {
                      EXPECT_FLOAT_EQ(full[255].item<float>(), std::log(256.0F));
                    } else if (name.ends_with("bias")) {
                      expect_all(name, full, 0);
                    } else if (full.dim() == 1) {
                      expect_all(name, full, 1);
                    } else if (name.ends_with(".out_proj.weight")) {
                      // Kaiming's bound for 512 inputs over the root of 4 layers.
                      const double bound = 1 / std::sqrt(512.0 * 4);
                      EXPECT_LE(full.abs().max().item<double>(), bound);
                      EXPECT_NEAR(full.std().item<double>(), bound / std::sqrt(3.0), 0.03 * bound);
                      ++num_narrowed;
                    } else {
                      EXPECT_NEAR(full.std().item<double>(), 0.03, 0.07 * 0.03) << name;
                    }
                  });
  EXPECT_EQ(num_narrowed, 1);
}

TEST(InitialValues, OfShortConvolutions) {
  for_each_weight(R"({"model_type": "lfm2", "num_hidden_layers": 2, "hidden_size": 512,
      "vocab_size": 300, "intermediate_size": 130, "initializer_range": 0.03,
      "num_attention_heads": 8, "conv_bias": true, "layer_types": ["conv", "full_attention"]})",
                  [&](const std::string& name, const at::Tensor& full) {
                    if (name.ends_with(".bias")) {
                      expect_all(name, full, 0);
                    } else if (full.dim() == 1) {
                      expect_all(name, full, 1);
                    } else {
                      EXPECT_NEAR(full.std().item<double>(), 0.03, 0.07 * 0.03) << name;
                    }
                  });
}

TEST(InitialValues, OfLatentAttention) {
  for_each_weight(R"({"model_type": "deepseek_v3", "num_hidden_layers": 2, "hidden_size": 96,
      "vocab_size": 300, "intermediate_size": 130, "moe_intermediate_size": 60,
      "first_k_dense_replace": 1, "n_routed_experts": 16, "num_attention_heads": 4,
      "num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 50, "initializer_range": 0.03})",
                  [&](const std::string& name, const at::Tensor& full) {
                    if (name.ends_with("e_score_correction_bias")) {
                      expect_all(name, full, 0);
                    } else if (full.dim() == 1) {
                      expect_all(name, full, 1);
                    } else {
                      EXPECT_NEAR(full.std().item<double>(), 0.03, 0.07 * 0.03) << name;
                    }
                  });
}

constexpr const char* kMixtures[] = {
    R"({"model_type": "olmoe", "num_experts": 16, "intermediate_size": 60})",
    R"({"model_type": "minimax_m2", "num_local_experts": 16, "intermediate_size": 60,
        "num_key_value_heads": 4, "head_dim": 24})",
    R"({"model_type": "granitemoeshared", "num_local_experts": 16, "intermediate_size": 60,
        "shared_intermediate_size": 40})",
    R"({"model_type": "granitemoe_swa", "num_local_experts": 16, "intermediate_size": 60,
        "shared_intermediate_size": 40})",
    R"({"model_type": "ernie4_5_moe", "moe_num_experts": 16, "moe_intermediate_size": 60})",
    R"({"model_type": "hunyuan_v1_moe", "num_experts": 16, "intermediate_size": 60})",
    R"({"model_type": "llama4_text", "num_local_experts": 16, "intermediate_size": 60,
        "intermediate_size_mlp": 130, "num_key_value_heads": 4, "head_dim": 24})",
    R"({"model_type": "exaone_moe", "num_experts": 16, "moe_intermediate_size": 60,
        "intermediate_size": 130, "num_key_value_heads": 4})",
    R"({"model_type": "solar_open", "n_routed_experts": 16, "moe_intermediate_size": 60,
        "num_key_value_heads": 4})",
    R"({"model_type": "mellum", "num_experts": 16, "moe_intermediate_size": 60,
        "num_key_value_heads": 4})",
    R"({"model_type": "flex_olmo", "num_experts": 16, "intermediate_size": 60})",
    R"({"model_type": "afmoe", "num_experts": 16, "moe_intermediate_size": 60,
        "intermediate_size": 130})"};

TEST(InitialValues, OfMixtures) {
  for (const char* mixture : kMixtures) {
    Json config = parse_json(mixture, "config.json");
    config.update({{"num_hidden_layers", 2},
                   {"hidden_size", 96},
                   {"vocab_size", 300},
                   {"num_attention_heads", 4},
                   {"pad_token_id", 7},
                   {"initializer_range", 0.03}});
    for_each_weight(config.dump().c_str(), [&](const std::string& name, const at::Tensor& full) {
      if (name.ends_with("_bias") || name.ends_with(".router.gate.weight") ||
          name.ends_with(".sinks")) {
        expect_all(name, full, 0);
      } else if (full.dim() == 1) {
        expect_all(name, full, 1);
      } else {
        EXPECT_NEAR(full.std().item<double>(), 0.03, 0.07 * 0.03) << name;
        if (name == "model.embed_tokens.weight") {
          EXPECT_EQ(full[7].abs().max().item<float>(), 0) << name;
        }
      }
    });
  }
}

TEST(InitialValues, OfYoutu) {
  // 2 / sqrt(5 hidden), of the embedding twice as far unless the file says otherwise.
  const double range = 2 / std::sqrt(5 * 96.0);
  for (const bool is_said : {false, true}) {
    Json config = parse_json(R"({"model_type": "youtu", "num_hidden_layers": 2, "hidden_size": 96,
      "vocab_size": 300, "intermediate_size": 130, "num_attention_heads": 4,
      "num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 50})",
                             "config.json");
    if (is_said) config["embedding_initializer_range"] = 0.03;
    for_each_weight(config.dump().c_str(), [&](const std::string& name, const at::Tensor& full) {
      if (full.dim() == 1) return expect_all(name, full, 1);
      const bool is_table = name == "model.embed_tokens.weight";
      const double expected = !is_table ? range : is_said ? 0.03 : 2 * range;
      EXPECT_NEAR(full.std().item<double>(), expected, 0.07 * expected) << name;
    });
  }
}

TEST(InitialValues, OfGraniteWithWindows) {
  for_each_weight(R"({"model_type": "granite_swa", "num_hidden_layers": 2, "hidden_size": 96,
      "vocab_size": 300, "intermediate_size": 130, "num_attention_heads": 4,
      "num_key_value_heads": 4, "initializer_range": 0.03})",
                  [&](const std::string& name, const at::Tensor& full) {
                    if (name.ends_with(".sinks")) {
                      expect_all(name, full, 0);
                    } else if (full.dim() == 1) {
                      expect_all(name, full, 1);
                    } else {
                      EXPECT_NEAR(full.std().item<double>(), 0.03, 0.07 * 0.03) << name;
                    }
                  });
}

TEST(InitialValues, OfNanochat) {
  // What attention adds begins narrower: of 2 layers by the root of 4.
  int num_narrowed = 0;
  for_each_weight(R"({"model_type": "nanochat", "num_hidden_layers": 2, "hidden_size": 96,
      "vocab_size": 300, "intermediate_size": 130, "num_attention_heads": 4,
      "initializer_range": 0.03, "attention_bias": true, "pad_token_id": 7})",
                  [&](const std::string& name, const at::Tensor& full) {
                    if (full.dim() == 1) return expect_all(name, full, 0);
                    const bool is_narrowed = name.ends_with(".o_proj.weight");
                    const double range = is_narrowed ? 0.015 : 0.03;
                    num_narrowed += is_narrowed ? 1 : 0;
                    EXPECT_NEAR(full.std().item<double>(), range, 0.07 * range) << name;
                    if (name == "model.embed_tokens.weight") expect_all(name, full[7], 0);
                  });
  EXPECT_EQ(num_narrowed, 2);
}

TEST(InitialValues, OfXglm) {
  for_each_weight(R"({"model_type": "xglm", "num_layers": 2, "d_model": 96, "vocab_size": 300,
      "ffn_dim": 130, "attention_heads": 4, "init_std": 0.03, "tie_word_embeddings": false})",
                  [&](const std::string& name, const at::Tensor& full) {
                    if (full.dim() == 1) {
                      return expect_all(name, full, name.ends_with("norm.weight") ? 1 : 0);
                    }
                    EXPECT_NEAR(full.std().item<double>(), 0.03, 0.07 * 0.03) << name;
                    if (name == "model.embed_tokens.weight") expect_all(name, full[1], 0);
                  });
}

TEST(InitialValues, OfGpt) {
  // Matrices of layers begin alike whatever the file says, its own kind of linear layer.
  for_each_weight(R"({"model_type": "openai-gpt", "n_layer": 2, "n_embd": 96, "vocab_size": 300,
      "n_head": 4, "initializer_range": 0.03, "tie_word_embeddings": false})",
                  [&](const std::string& name, const at::Tensor& full) {
                    if (full.dim() == 1) {
                      return expect_all(name, full, name.ends_with(".weight") ? 1 : 0);
                    }
                    const double range = name.starts_with("transformer.h.") ? 0.02 : 0.03;
                    EXPECT_NEAR(full.std().item<double>(), range, 0.07 * range) << name;
                  });
}

}  // namespace
}  // namespace strata::models
