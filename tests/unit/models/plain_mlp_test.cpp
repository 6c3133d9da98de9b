// Oracle: transformers' ApertusForCausalLM: names in its order, what its _init_weights leaves.
#include "strata/models/llama/plain_mlp.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/models/registry.h"

namespace strata::models {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<Model> make(const std::string& type) {
  Json config = parse_json(
      R"({"vocab_size": 19, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
          "num_attention_heads": 2, "pad_token_id": 3})",
      "config.json");
  config["model_type"] = type;
  return create_model(config, {});
}

std::vector<std::string> names_of_mlp(Model& model) {
  std::vector<std::string> list;
  for (const nn::Parameter* p : model.parameters()) {
    const std::string prefix = "model.layers.0.mlp.";
    if (p->name().starts_with(prefix)) list.push_back(p->name().substr(prefix.size()));
  }
  return list;
}

TEST(PlainMlp, NamesAreTheReferences) {
  EXPECT_THAT(names_of_mlp(*make("arcee")), ElementsAre("up_proj.weight", "down_proj.weight"));
  EXPECT_THAT(names_of_mlp(*make("apertus")),
              ElementsAre("up_proj.weight", "down_proj.weight", "act_fn.alpha_p", "act_fn.alpha_n",
                          "act_fn.beta", "act_fn.eps"));
}

TEST(PlainMlp, TheActivationBeginsAsTheReferences) {
  const auto model = make("apertus");
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  std::vector<float> found;
  for (const nn::Parameter* p : model->parameters()) {
    const at::Tensor full = at::full(p->shape(), std::nan(""));
    model->init_weight(*p, full, generator);
    if (p->name().find(".act_fn.") != std::string::npos) found.push_back(full.item<float>());
    if (p->name().find("norm") != std::string::npos) {
      EXPECT_TRUE(full.equal(at::ones_like(full))) << p->name();
    }
  }
  // softplus of the first is 0.8, 0.5 + softplus of the second, too.
  EXPECT_THAT(found, ElementsAre(static_cast<float>(std::log(std::expm1(0.8))),
                                 static_cast<float>(std::log(std::expm1(0.3))), 0.5f, -1e-6f));
}

}  // namespace
}  // namespace strata::models
