// Oracle: what transformers counts in published models (bert-base-uncased and the others with a
// head of two labels), its _init_weights, its sinusoids.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <map>
#include <string>

#include "strata/base/error.h"
#include "strata/models/registry.h"

namespace strata::models {
namespace {

std::unique_ptr<Model> make(const std::string& type, const std::string& architecture,
                            const std::string& more = "") {
  return create_model(parse_json(R"({"model_type": ")" + type + R"(", "architectures": [")" +
                                     architecture + "\"]" + more + "}",
                                 "config.json"),
                      {});
}

int64_t count(const Model& model) {
  int64_t numel = 0;
  for (const nn::Parameter* p : const_cast<Model&>(model).parameters()) numel += p->numel();
  return numel;
}

constexpr const char* kOfRoberta = R"(, "max_position_embeddings": 514, "type_vocab_size": 1)";

TEST(BertModel, IsAsLargeAsPublished) {
  EXPECT_EQ(count(*make("bert", "BertForSequenceClassification")), 109483778);
  EXPECT_EQ(count(*make("roberta", "RobertaForSequenceClassification", kOfRoberta)), 124647170);
  EXPECT_EQ(count(*make(
                "xlm-roberta", "XLMRobertaForSequenceClassification",
                R"(, "max_position_embeddings": 514, "type_vocab_size": 1, "vocab_size": 250002)")),
            278045186);
  EXPECT_EQ(count(*make("distilbert", "DistilBertForSequenceClassification")), 66955010);
}

// Of deberta-v3-base.
constexpr const char* kOfDeberta =
    R"(, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "relative_attention": true, "position_buckets": 256,
    "norm_rel_ebd": "layer_norm", "share_att_key": true, "pos_att_type": "p2c|c2p",
    "position_biased_input": false, "type_vocab_size": 0)";

TEST(BertModel, RelativesAreAsLargeAsPublished) {
  EXPECT_EQ(count(*make("deberta-v2", "DebertaV2ForSequenceClassification", kOfDeberta)),
            184423682);
  EXPECT_EQ(count(*make("electra", "ElectraForSequenceClassification")), 13549314);  // small
  EXPECT_EQ(count(*make("albert", "AlbertForSequenceClassification",
                        R"(, "hidden_size": 768, "num_attention_heads": 12,
                        "intermediate_size": 3072)")),
            11685122);
  EXPECT_EQ(count(*make("mpnet", "MPNetForSequenceClassification",
                        R"(, "max_position_embeddings": 514)")),
            109488002);
  EXPECT_EQ(count(*make(
                "camembert", "CamembertForSequenceClassification",
                R"(, "max_position_embeddings": 514, "type_vocab_size": 1, "vocab_size": 32005)")),
            110623490);
}

TEST(BertModel, InitialValues) {
  const std::string small =
      R"(, "hidden_size": 96, "num_hidden_layers": 2, "intermediate_size": 128,
    "num_attention_heads": 4, "vocab_size": 500, "initializer_range": 0.03, "pad_token_id": 1)";
  for (const auto& [type, architecture] :
       std::map<std::string, std::string>{{"bert", "BertForSequenceClassification"},
                                          {"roberta", "RobertaForSequenceClassification"}}) {
    const auto model = make(type, architecture, small);
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
    for (const nn::Parameter* parameter : model->parameters()) {
      const std::string& name = parameter->name();
      at::Tensor full = at::empty(parameter->shape());
      model->init_weight(*parameter, full, generator);
      if (name.ends_with(".bias")) {
        EXPECT_EQ(full.abs().max().item<float>(), 0) << name;
      } else if (full.dim() == 1) {
        EXPECT_EQ(full.min().item<float>(), 1) << name;
      } else if (full.numel() > 1000) {
        EXPECT_NEAR(full.std().item<double>(), 0.03, 0.05 * 0.03) << name;
      }
      const bool has_padding = name.ends_with("word_embeddings.weight") ||
                               (type == "roberta" && name.ends_with("position_embeddings.weight"));
      if (full.dim() == 2 && full.size(0) > 1) {
        EXPECT_EQ(full.select(0, 1).abs().max().item<float>() == 0, has_padding) << name;
      }
    }
  }
}

TEST(BertModel, PositionsThatBeginAsWaves) {
  const auto model =
      make("distilbert", "DistilBertForSequenceClassification",
           R"(, "dim": 12, "n_heads": 3, "n_layers": 1, "sinusoidal_pos_embds": true)");
  for (const nn::Parameter* parameter : model->parameters()) {
    if (!parameter->name().ends_with("position_embeddings.weight")) continue;
    const at::Tensor full = at::empty(parameter->shape());
    model->init_weight(*parameter, full, at::make_generator<at::CPUGeneratorImpl>(1));
    for (const int64_t position : {0, 1, 7, 511}) {
      for (int64_t j = 0; j < 12; ++j) {
        const double angle = static_cast<double>(position) /
                             std::pow(10000.0, 2.0 * static_cast<double>(j / 2) / 12);
        EXPECT_NEAR(full[position][j].item<double>(),
                    j % 2 == 0 ? std::sin(angle) : std::cos(angle), 1e-6);
      }
    }
  }
}

TEST(BertModel, IsAnEncoderAlone) {
  const auto is_one = [](const char* type) { return is_encoder(Json{{"model_type", type}}); };
  EXPECT_TRUE(is_one("bert") && is_one("roberta") && is_one("xlm-roberta") && is_one("distilbert"));
  EXPECT_TRUE(is_one("deberta-v2") && is_one("electra") && is_one("albert") && is_one("mpnet"));
  EXPECT_FALSE(is_one("bart") || is_one("t5") || is_one("llama") || is_one("unheard_of"));
  const auto model = make("bert", "BertForSequenceClassification");
  EXPECT_TRUE(model->reads_first_token());
  EXPECT_FALSE(model->head_counts());
  EXPECT_THROW(model->key_value_shape(), ConfigError);
}

}  // namespace
}  // namespace strata::models
