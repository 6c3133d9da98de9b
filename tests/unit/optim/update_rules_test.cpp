// Oracle: the kernels of torch.optim's fused Adam, AdamW and SGD on the same tensors; Lion as
// published (Chen et al. 2023), in fp64.
#include "strata/optim/update_rules.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace strata::optim {
namespace {

constexpr int64_t kCount = 1000;
constexpr int kSteps = 6;
constexpr double kRate = 3e-2, kBeta1 = 0.9, kBeta2 = 0.98, kEps = 1e-6;

struct Reference {
  at::Tensor param;
  at::Tensor first = at::zeros({kCount}), second = at::zeros({kCount}), step = at::zeros({});
};

void step_lion(Reference& r, const at::Tensor& grad, double decay) {
  const at::Tensor g = grad.to(at::kDouble);
  const at::Tensor m = r.first.to(at::kDouble);
  const at::Tensor direction = at::sign(kBeta1 * m + (1 - kBeta1) * g);
  r.param.copy_(r.param.to(at::kDouble) * (1 - kRate * decay) - kRate * direction);
  r.first.copy_(kBeta2 * m + (1 - kBeta2) * g);
}

void step_reference(Rule rule, Reference& r, const at::Tensor& grad, double decay,
                    const SgdMomentum& momentum) {
  r.step.add_(1);
  switch (rule) {
    case Rule::kAdam:
      at::_fused_adam_({r.param}, {grad}, {r.first}, {r.second}, {}, {r.step}, kRate, kBeta1,
                       kBeta2, decay, kEps, /*amsgrad=*/false, /*maximize=*/false);
      return;
    case Rule::kAdamW:
      at::_fused_adamw_({r.param}, {grad}, {r.first}, {r.second}, {}, {r.step}, kRate, kBeta1,
                        kBeta2, decay, kEps, /*amsgrad=*/false, /*maximize=*/false);
      return;
    case Rule::kSgd:
      at::_fused_sgd_({r.param}, {grad}, {}, decay, /*momentum=*/0, kRate, /*dampening=*/0,
                      /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false);
      return;
    case Rule::kSgdMomentum:
      at::_fused_sgd_({r.param}, {grad}, {r.first}, decay, momentum.factor, kRate,
                      momentum.dampening, momentum.nesterov, /*maximize=*/false,
                      /*is_first_step=*/r.step.item<float>() == 1);
      return;
    case Rule::kLion:
      return step_lion(r, grad, decay);
  }
}

void expect_equal_walks(Rule rule, double decay, float scale, const SgdMomentum& momentum = {}) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const at::Tensor start = at::empty({kCount}).normal_(0, 1, generator);
  Reference reference{start.clone()};
  const at::Tensor param = start.clone();
  std::vector<at::Tensor> state;
  for (size_t i = 0; i < state_of(rule).size(); ++i) state.push_back(at::zeros({kCount}));
  for (int64_t step = 1; step <= kSteps; ++step) {
    const at::Tensor grad = at::empty({kCount}).normal_(0, 1, generator);
    const at::Tensor before = grad.clone();
    apply_rule(rule, param, grad, state,
               {.learning_rate = kRate,
                .beta1 = kBeta1,
                .beta2 = kBeta2,
                .eps = kEps,
                .weight_decay = decay,
                .step = step,
                .grad_scale = scale,
                .momentum = momentum});
    EXPECT_TRUE(grad.equal(before));
    step_reference(rule, reference, grad * scale, decay, momentum);
  }
  EXPECT_TRUE(at::allclose(param, reference.param, 1e-6, 1e-6))
      << (param - reference.param).abs().max().item<float>();
  EXPECT_FALSE(at::allclose(param, start, 1e-2, 1e-2));
  const at::Tensor moments[] = {reference.first, reference.second};
  for (size_t i = 0; i < state.size(); ++i) {
    EXPECT_TRUE(at::allclose(state[i], moments[i], 1e-5, 1e-7)) << i;
  }
}

TEST(UpdateRules, MoveAsInTorchOptim) {
  for (const Rule rule : {Rule::kAdam, Rule::kAdamW, Rule::kSgd, Rule::kLion}) {
    for (const double decay : {0.0, 0.1}) {
      for (const float scale : {1.0f, 0.25f}) {
        SCOPED_TRACE(
            fmt::format("rule {} decay {} scale {}", static_cast<int>(rule), decay, scale));
        expect_equal_walks(rule, decay, scale);
      }
    }
  }
}

TEST(UpdateRules, MomentumIsThatOfTorchOptim) {
  for (const SgdMomentum& momentum :
       {SgdMomentum{0.9, 0, false}, SgdMomentum{0.8, 0.3, false}, SgdMomentum{0.7, 0, true}}) {
    for (const double decay : {0.0, 0.1}) {
      SCOPED_TRACE(fmt::format("momentum {} dampening {} nesterov {} decay {}", momentum.factor,
                               momentum.dampening, momentum.nesterov, decay));
      expect_equal_walks(Rule::kSgdMomentum, decay, /*scale=*/0.5f, momentum);
    }
  }
}

// A decay that is added to the gradient goes through the moments, one beside it does not.
TEST(UpdateRules, DecayOfAdamIsPartOfItsGradient) {
  at::Tensor means[2];
  const Rule rules[] = {Rule::kAdam, Rule::kAdamW};
  for (int i = 0; i < 2; ++i) {
    const at::Tensor param = at::ones({4});
    std::vector<at::Tensor> state{at::zeros({4}), at::zeros({4})};
    apply_rule(rules[i], param, at::zeros({4}), state,
               {.learning_rate = kRate,
                .beta1 = kBeta1,
                .beta2 = kBeta2,
                .eps = kEps,
                .weight_decay = 0.1,
                .step = 1,
                .grad_scale = 1});
    means[i] = state[0];
  }
  EXPECT_TRUE(at::allclose(means[0], at::full({4}, (1 - kBeta1) * 0.1)));
  EXPECT_TRUE(means[1].equal(at::zeros({4})));
}

}  // namespace
}  // namespace strata::optim
