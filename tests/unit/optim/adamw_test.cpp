// Oracle: torch's fused AdamW (at::_fused_adamw_) on the whole tensors; Trainer's decay rule.
#include "strata/optim/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <gtest/gtest.h>

#include "idle_group.h"
#include "lost_group.h"
#include "strata/comm/mesh.h"
#include "strata/comm/single_group.h"
#include "strata/models/registry.h"
#include "strata/shard/loading.h"

namespace strata::optim {
namespace {

TEST(Decay, AllButBiasesAndNorms) {
  EXPECT_TRUE(is_decayed("model.embed_tokens.weight"));
  EXPECT_TRUE(is_decayed("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_TRUE(is_decayed("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"));
  EXPECT_TRUE(is_decayed("transformer.wpe.weight"));
  EXPECT_FALSE(is_decayed("transformer.ln_f.weight"));
  EXPECT_FALSE(is_decayed("transformer.h.11.ln_1.weight"));
  EXPECT_FALSE(is_decayed("transformer.h.11.ln_attn.weight"));
  EXPECT_FALSE(is_decayed("transformer.h.11.ln_mlp.weight"));
  EXPECT_FALSE(is_decayed("model.layers.0.self_attn.q_layernorm.norms.3.weight"));
  EXPECT_FALSE(is_decayed("model.norm.weight"));
  EXPECT_FALSE(is_decayed("transformer.blocks.11.norm_2.weight"));
  EXPECT_FALSE(is_decayed("transformer.norm_f.weight"));
  EXPECT_TRUE(is_decayed("model.norm_f.weight"));               // Nemotron-H's, an RMSNorm
  EXPECT_TRUE(is_decayed("model.layers.0.post_norm1.weight"));  // HyperCLOVA X's
  EXPECT_FALSE(is_decayed("model.layers.0.input_layernorm.weight"));
  EXPECT_FALSE(is_decayed("model.layers.0.self_attn.q_proj.bias"));
  EXPECT_FALSE(is_decayed("model.layers.0.self_attn.q_norm.weight"));
}

TEST(Clip, FactorIsTorchs) {
  EXPECT_DOUBLE_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_DOUBLE_EQ(clip_factor(4.0, 0), 1.0);
}

// What rank 1 of two copies sees, whose rank 0 says 9 to everything.
class SecondCopy final : public IdleGroup {
 public:
  std::unique_ptr<comm::Work> start_broadcast(at::Tensor tensor, int root) override {
    EXPECT_EQ(root, 0);
    tensor.fill_(9);
    return done();
  }
};

// Their shard groups may add in another order, but all copies are clipped alike.
TEST(Clip, CopiesTakeTheNormOfTheFirst) {
  const Json config{{"model_type", "llama"},    {"vocab_size", 37},
                    {"hidden_size", 20},        {"intermediate_size", 28},
                    {"num_hidden_layers", 1},   {"num_attention_heads", 2},
                    {"num_key_value_heads", 1}, {"head_dim", 10}};
  auto model = models::create_model(config, {});
  comm::Mesh mesh = comm::make_fake_mesh(4, 2);
  mesh.replicate = std::make_unique<SecondCopy>();
  shard::UnitStore store(*model, mesh, {});
  for (int u = 0; u < store.num_units(); ++u) {
    store.open_gradients(u, true);
    for (const auto& extent : store.unit(u).segments[0].extents) {
      extent.parameter->accumulate_grad(at::ones(extent.parameter->shape()));
    }
    store.reduce(u, true);
    store.wait_reduce(u);
  }
  EXPECT_EQ(global_gradient_norm(store), 3);
}

// What is in the gradients then was never summed: no norm of it may decide an update.
TEST(Clip, NoNormOfGradientsWhoseSumWasEnded) {
  const Json config{{"model_type", "llama"},    {"vocab_size", 37},
                    {"hidden_size", 20},        {"intermediate_size", 28},
                    {"num_hidden_layers", 1},   {"num_attention_heads", 2},
                    {"num_key_value_heads", 1}, {"head_dim", 10}};
  auto model = models::create_model(config, {});
  auto group = std::make_unique<LostGroup>();
  LostGroup& shard = *group;
  comm::Mesh mesh{comm::make_single_group(), std::move(group), comm::make_single_group()};
  shard::UnitStore store(*model, mesh, {});
  for (int u = 0; u < store.num_units(); ++u) {
    store.open_gradients(u, true);
    store.reduce(u, true);
    store.wait_reduce(u);
    store.home(u, 0).gradient.fill_(1);
  }
  EXPECT_GT(global_gradient_norm(store), 0);
  shard.is_lost = true;
  EXPECT_THROW(global_gradient_norm(store), CommError);
  // Nor are weights that were to come from there what is stored.
  int num_seen = 0;
  EXPECT_THROW(store.with_stored(0, 0, [&](const at::Tensor&) { ++num_seen; }), CommError);
  EXPECT_EQ(num_seen, 1);
  shard.is_lost = false;
  store.with_stored(0, 0, [&](const at::Tensor&) { ++num_seen; });
  EXPECT_EQ(num_seen, 2);
}

TEST(AdamW, EveryTensorMovesAsUnderTorch) {
  const Json config{{"model_type", "llama"},    {"vocab_size", 37},
                    {"hidden_size", 20},        {"intermediate_size", 28},
                    {"num_hidden_layers", 2},   {"num_attention_heads", 2},
                    {"num_key_value_heads", 1}, {"head_dim", 10}};
  auto model = models::create_model(config, {});
  comm::Mesh mesh = comm::make_fake_mesh(1, 1);
  shard::UnitStore store(*model, mesh, {});
  const AdamWOptions options{.weight_decay = 0.1};
  AdamW optimizer(store, options);

  struct Reference {
    at::Tensor value, grad, m, v, step;
  };
  std::map<const nn::Parameter*, Reference> references;
  for (nn::Parameter* p : model->parameters()) {
    const at::Tensor value = at::randn(p->shape());
    place_tensor(store, *p, value);
    references[p] = {value, at::Tensor(), at::zeros_like(value), at::zeros_like(value),
                     at::zeros({})};
  }
  for (int step = 0; step < 3; ++step) {
    double square_sum = 0;
    for (int u = 0; u < store.num_units(); ++u) {
      store.open_gradients(u, true);
      for (const auto& extent : store.unit(u).segments[0].extents) {
        Reference& reference = references[extent.parameter];
        reference.grad = at::randn(extent.parameter->shape());
        square_sum += reference.grad.to(at::kDouble).square().sum().item<double>();
        extent.parameter->accumulate_grad(reference.grad);
      }
      store.reduce(u, true);
      store.wait_reduce(u);
    }
    const double norm = global_gradient_norm(store);
    EXPECT_NEAR(norm, std::sqrt(square_sum), 1e-4 * norm);
    const double scale = clip_factor(norm, 1.0);
    optimizer.step(1e-2, scale);
    for (auto& [p, r] : references) {
      r.step.add_(1);
      at::Tensor grad = r.grad * scale;
      at::_fused_adamw_({r.value}, {grad}, {r.m}, {r.v}, {}, {r.step}, /*lr=*/1e-2, options.beta1,
                        options.beta2, is_decayed(p->name()) ? 0.1 : 0.0, options.eps,
                        /*amsgrad=*/false, /*maximize=*/false);
    }
  }
  for (int u = 0; u < store.num_units(); ++u) {
    store.gather(u);
    store.wait_gather(u);
    for (const auto& extent : store.unit(u).segments[0].extents) {
      EXPECT_TRUE(at::allclose(extent.parameter->value(), references[extent.parameter].value,
                               /*rtol=*/1e-5, /*atol=*/1e-6))
          << extent.parameter->name();
    }
    store.release(u);
  }
}

}  // namespace
}  // namespace strata::optim
