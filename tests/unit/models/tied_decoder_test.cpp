// Oracle: from_pretrained() of the reference: of a tied pair a file may hold either name or both;
// both with other values end the tie; without a tie each weight must be there.
#include "strata/models/tied_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/hf/model_folder.h"
#include "strata/models/registry.h"
#include "strata/nn/embedding.h"

namespace strata::models {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;
using ::testing::HasSubstr;

struct Family {
  const char* model_type;
  std::string table;    // the embedding's name
  std::string ignored;  // a tensor that files may hold for nothing; empty: none
};

const std::string kHead = "lm_head.weight";

Json config_of(const Family& family, bool tied) {
  Json config = parse_json(
      R"({"vocab_size": 19, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
          "num_attention_heads": 2, "n_embd": 8, "n_head": 2, "n_layer": 1, "ffn_dim": 12,
          "word_embed_proj_dim": 8, "rotary_pct": 0.5})",
      "config.json");
  config["model_type"] = family.model_type;
  config["tie_word_embeddings"] = tied;
  return config;
}

std::unique_ptr<Model> make(const Family& family, bool tied) {
  return create_model(config_of(family, tied), {});
}

// What the file has under the two names of the pair; empty names are left out.
struct Pair {
  std::string table, head;
  bool differ = false;
};

// A checkpoint of zeros but for the head's values, where they differ.
hf::ModelFolder folder_of(const Family& family, bool tied, const Pair& pair,
                          const TemporaryFolder& folder) {
  folder.put("config.json", config_of(family, tied).dump());
  const auto model = make(family, tied);
  std::vector<hf::TensorSpec> specs;
  for (const nn::Parameter* parameter : model->parameters()) {
    if (parameter->name() == family.table || parameter->name() == kHead) continue;
    specs.push_back({parameter->name(), hf::DType::kF32, parameter->shape()});
  }
  for (const std::string& name : {pair.table, pair.head}) {
    if (!name.empty()) specs.push_back({name, hf::DType::kF32, {19, 8}});
  }
  if (!family.ignored.empty()) specs.push_back({family.ignored, hf::DType::kF32, {2}});
  hf::SafetensorsWriter writer(folder / "model.safetensors", specs);
  for (const hf::TensorSpec& spec : specs) {
    const double value = spec.name == pair.head && pair.differ ? 1 : 0;
    const at::Tensor full = at::full(spec.shape, value, at::kFloat);
    writer.write(spec.name, {static_cast<const std::byte*>(full.const_data_ptr()), full.nbytes()});
  }
  writer.finish();
  return hf::ModelFolder(folder.path());
}

// Where check_weights() finds the weights in a file of `pair`.
WeightSources check(const Family& family, Model& model, const Pair& pair, bool tied = true) {
  const TemporaryFolder folder;
  return model.check_weights(folder_of(family, tied, pair, folder));
}

class TiedDecoderFiles : public ::testing::TestWithParam<Family> {
 protected:
  WeightSources sources(const Pair& pair) {
    return check(GetParam(), *make(GetParam(), true), pair);
  }
  const std::string& table() const { return GetParam().table; }
};

TEST_P(TiedDecoderFiles, HoldEitherNameOfOneWeight) {
  EXPECT_EQ(sources({table(), ""}).at(table()), table());
  EXPECT_EQ(sources({"", kHead}).at(table()), kHead);
  EXPECT_FALSE(sources({table(), ""}).contains(kHead));
}

TEST_P(TiedDecoderFiles, HoldBothNamesOfOneWeight) {
  const WeightSources both = sources({table(), kHead});
  EXPECT_EQ(both.at(table()), table());
  EXPECT_FALSE(both.contains(kHead));
}

TEST_P(TiedDecoderFiles, OfTwoMatricesEndTheTie) {
  const auto model = make(GetParam(), true);
  const WeightSources both = check(GetParam(), *model, {table(), kHead, /*differ=*/true});
  EXPECT_EQ(both.at(table()), table());
  EXPECT_EQ(both.at(kHead), kHead);
  EXPECT_NE(model->blocks().back()->linears().front()->shared_weight().get(),
            model->blocks().front()->embedding()->shared_weight().get());
}

// As an adapter does that trains the output layer.
TEST_P(TiedDecoderFiles, OfOneWeightFillBothOfATieThatEnded) {
  for (const std::string& held : {table(), kHead}) {
    const auto model = make(GetParam(), true);
    model->trainable_copy(kHead);
    const WeightSources one =
        check(GetParam(), *model, held == kHead ? Pair{"", kHead} : Pair{table(), ""});
    EXPECT_EQ(one.at(table()), held);
    EXPECT_EQ(one.at(kHead), held);
  }
  const auto model = make(GetParam(), true);
  model->trainable_copy(kHead);
  const WeightSources both = check(GetParam(), *model, {table(), kHead});
  EXPECT_EQ(both.at(table()), table());
  EXPECT_EQ(both.at(kHead), kHead);
}

TEST_P(TiedDecoderFiles, OfModelsWithoutATieHoldBoth) {
  const auto message = [&](const Pair& pair) {
    return message_of<FormatError>(
        [&] { check(GetParam(), *make(GetParam(), false), pair, /*tied=*/false); });
  };
  EXPECT_EQ(message({table(), kHead}), "");
  EXPECT_THAT(message({table(), ""}), HasSubstr("found no tensor \"lm_head.weight\""));
  EXPECT_THAT(message({"", kHead}), HasSubstr("found no tensor \"" + table() + "\""));
}

TEST_P(TiedDecoderFiles, TellOfTheTieInConfigJson) {
  Json config;
  const auto model = make(GetParam(), true);
  model->describe_tie(config);
  EXPECT_TRUE(config.is_null()) << config.dump();
  EXPECT_TRUE(model->is_called_tied());
  model->trainable_copy(kHead);
  model->describe_tie(config);
  EXPECT_EQ(config, Json({{"tie_word_embeddings", false}}));
  EXPECT_TRUE(model->is_called_tied());
  EXPECT_FALSE(make(GetParam(), false)->is_called_tied());
}

const Family kGpt2{"gpt2", "transformer.wte.weight", "h.0.attn.bias"};

INSTANTIATE_TEST_SUITE_P(Families, TiedDecoderFiles,
                         ::testing::Values(Family{"llama", "model.embed_tokens.weight",
                                                  "model.rotary_emb.inv_freq"},
                                           kGpt2,
                                           Family{"gpt_neox", "gpt_neox.embed_in.weight",
                                                  "gpt_neox.layers.0.attention.bias"},
                                           Family{"opt", "model.decoder.embed_tokens.weight", ""}),
                         [](const auto& info) { return std::string(info.param.model_type); });

TEST(TiedDecoder, FilesOfTheFirstGpt2sNameTheBodysWeightsWithoutItsPrefix) {
  const std::string name = "wte.weight";
  EXPECT_EQ(check(kGpt2, *make(kGpt2, true), {name, ""}).at(kGpt2.table), name);
  const WeightSources both = check(kGpt2, *make(kGpt2, true), {name, kHead, /*differ=*/true});
  EXPECT_EQ(both.at(kGpt2.table), name);
  EXPECT_EQ(both.at(kHead), kHead);
  const auto untied = make(kGpt2, true);
  untied->trainable_copy(kHead);
  EXPECT_EQ(check(kGpt2, *untied, {name, ""}).at(kHead), name);
}

}  // namespace
}  // namespace strata::models
