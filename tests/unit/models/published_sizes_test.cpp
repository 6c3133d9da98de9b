// Oracle: what the reference says of the models that its default settings describe, built on the
// meta device: the number of parameters and the bytes of buffers.
#include <gtest/gtest.h>

#include "strata/models/registry.h"

namespace strata::models {
namespace {

struct Published {
  const char* config;
  int64_t numel;
  int64_t buffer_bytes;
};

constexpr Published kPublished[] = {
    {R"({"model_type": "qwen3_5_text"})", 8953803264, 256},
    {R"({"model_type": "qwen3_5_moe_text"})", 34660610688, 256},
    {R"({"model_type": "qwen3_next"})", 79674391296, 256},
    {R"({"model_type": "gemma4_text"})", 5077177856, 3080 + 30 * 4},
    {R"({"model_type": "gemma4_text", "attention_k_eq_v": true,
         "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0})",
     2969470720, 3076 + 30 * 4},
    {R"({"model_type": "gemma4_text", "hidden_size": 2816, "intermediate_size": 2112,
         "num_attention_heads": 16, "num_key_value_heads": 8, "attention_k_eq_v": true,
         "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 0,
         "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8,
         "moe_intermediate_size": 704})",
     25233141760, 3076 + 30 * 4},
    {R"({"model_type": "deepseek_v2", "num_experts_per_tok": 6})", 38612307968, 256},
    {R"({"model_type": "deepseek_v3"})", 671026404352, 59648},
    {R"({"model_type": "glm4_moe_lite"})", 29943390976, 12032},
    {R"({"model_type": "minicpm3"})", 4073875968, 136},
    {R"({"model_type": "internlm3"})", 8804241408, 512},
    {R"({"model_type": "iquestcoder"})", 39794283520, 512},
    {R"({"model_type": "cwm"})", 32581097472, 512},
    {R"({"model_type": "helium"})", 2172643840, 512},
    {R"({"model_type": "hyperclovax"})", 6738677760, 512},
    {R"({"model_type": "vaultgemma"})", 2614222080, 1028},
    {R"({"model_type": "olmoe"})", 13361612800, 512},
    {R"({"model_type": "minimax_m2"})", 228689748992, 64000},
    {R"({"model_type": "granitemoe"})", 37039116288, 512},
    {R"({"model_type": "granitemoeshared", "shared_intermediate_size": 1024})", 37441769472, 512},
    // What corrects the routers is a parameter there, which never trains.
    {R"({"model_type": "ernie4_5_moe"})", 21825436160, 512 + 1728 * 4},
    {R"({"model_type": "hunyuan_v1_moe", "num_experts": 8, "head_dim": 128})", 43488907264, 512},
    {R"({"model_type": "dots1", "n_routed_experts": 128, "n_shared_experts": 2,
         "num_experts_per_tok": 6})",
     163585920960, 32320},
    {R"({"model_type": "exaone_moe"})", 28550639616, 8448},
    {R"({"model_type": "solar_open"})", 102651793408, 25088},
    {R"({"model_type": "mellum"})", 12149923072, 512},
    {R"({"model_type": "mellum", "num_hidden_layers": 2,
         "layer_types": ["sliding_attention", "full_attention"]})",
     1288482560, 1024},
    {R"({"model_type": "flex_olmo"})", 33270665216, 512},
    {R"({"model_type": "afmoe"})", 19232598016, 512 + 1984 * 4},
    {R"({"model_type": "youtu"})", 1961560064, 256},
    {R"({"model_type": "granite_swa"})", 2144463840, 1024},
    {R"({"model_type": "granite_swa", "num_hidden_layers": 2, "layer_rope_theta": [0, 10000]})",
     414200360, 1024},
    {R"({"model_type": "granite_swa", "num_hidden_layers": 2, "layer_rope_theta": [5e5, 10000]})",
     414200360, 1536},
    {R"({"model_type": "granitemoe_swa"})", 37039117312, 1024},
    {R"({"model_type": "granitemoe_swa", "num_hidden_layers": 2, "layer_rope_theta": [0, 10000],
         "shared_intermediate_size": 1024})",
     2585874496, 1024},
    {R"({"model_type": "llama4_text"})", 107769861120, 512},
    {R"({"model_type": "llama4_text", "num_local_experts": 128, "interleave_moe_layer_step": 2,
         "use_qk_norm": false})",
     400711848960, 512},
    {R"({"model_type": "nanochat"})", 256573440, 512},
    {R"({"model_type": "lfm2"})", 2705497600, 320},
    // LFM2-1.2B, LFM2-8B-A1B.
    {R"({"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "block_ff_dim": 12288,
         "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "full_attention",
           "conv", "conv", "full_attention", "conv", "full_attention", "conv", "full_attention",
           "conv", "full_attention", "conv"]})",
     1170340608, 256},
    {R"({"model_type": "lfm2_moe", "num_hidden_layers": 24,
         "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "conv",
           "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv", "conv",
           "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv",
           "full_attention", "conv", "conv"]})",
     8339929856, 3072},
    {R"({"model_type": "xglm"})", 564463616, 8396800},
    {R"({"model_type": "persimmon"})", 9397175296, 128},
    {R"({"model_type": "openai-gpt"})", 116534784, 12587008},
    {R"({"model_type": "granitemoehybrid"})", 38601064448, 0},
    {R"({"model_type": "granitemoehybrid", "num_local_experts": 0,
         "position_embedding_type": "rope", "num_hidden_layers": 2,
         "layer_types": ["attention", "attention"]})",
     421548032, 512},
    // Bamba-9B.
    {R"({"model_type": "bamba", "attn_layer_indices": [9, 18, 27], "mamba_d_state": 128})",
     9778138240, 256},
    {R"({"model_type": "falcon_h1"})", 8514961408, 344576},
    // Falcon-H1-0.5B.
    {R"({"model_type": "falcon_h1", "hidden_size": 1024, "intermediate_size": 2048,
         "num_hidden_layers": 36, "num_attention_heads": 8, "num_key_value_heads": 2,
         "head_dim": 64, "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64,
         "mamba_d_state": 128, "vocab_size": 32784})",
     521411104, 482944},
    {R"({"model_type": "nemotron_h"})", 1968355712, 32},
    {R"({"model_type": "nemotron_h", "moe_latent_size": 1024})", 1598863744, 32},
    // Nemotron-H-8B, Nemotron 3 Nano.
    {R"({"model_type": "nemotron_h",
         "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"})",
     8100852736, 0},
    {R"({"model_type": "nemotron_h", "hidden_size": 2688, "num_key_value_heads": 2,
         "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
         "intermediate_size": 1856, "moe_intermediate_size": 1856,
         "moe_shared_expert_intermediate_size": 3712, "mamba_num_heads": 64,
         "n_routed_experts": 128, "num_experts_per_tok": 6})",
     31577937344, 11776},
};

TEST(Models, AreAsLargeAsPublished) {
  for (const Published& published : kPublished) {
    const auto model = create_model(parse_json(published.config, "config.json"), {});
    int64_t numel = 0, buffer_bytes = model->buffer_bytes();
    for (const nn::Parameter* parameter : model->parameters()) {
      if (parameter->is_buffer()) {
        buffer_bytes += parameter->numel() * 4;
      } else {
        numel += parameter->numel();
      }
    }
    EXPECT_EQ(numel, published.numel) << published.config;
    EXPECT_EQ(buffer_bytes, published.buffer_bytes) << published.config;
  }
}

}  // namespace
}  // namespace strata::models
