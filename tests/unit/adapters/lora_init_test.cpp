// Oracle: the distributions that PEFT's reset_lora_parameters() and torch.nn.Linear name; the lines
// that PEFT prints for the same model.
#include "strata/adapters/lora_init.h"

#include <cmath>
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/adapters/counts.h"
#include "strata/base/error.h"
#include "tiny_models.h"

namespace strata::adapters {
namespace {

using strata::testing::message_of;
using ::testing::HasSubstr;

using Values = std::map<std::string, at::Tensor>;

LoraOptions of_queries(const char* init) {
  LoraOptions options;
  options.target_modules = {"q_proj"};
  options.init = init;
  return options;
}

Values first_values(const LoraOptions& options, uint64_t seed = 3) {
  const auto model = tiny_llama();
  const auto adapter = attach_lora(*model, options);
  Values values;
  initialize(*adapter, seed, [&](nn::Parameter& parameter, const at::Tensor& value) {
    EXPECT_EQ(parameter.shape(), value.sizes().vec()) << parameter.name();
    EXPECT_TRUE(values.emplace(parameter.name(), value.clone()).second) << parameter.name();
  });
  EXPECT_EQ(values.size(), adapter->tensors().size());
  return values;
}

const at::Tensor& of(const Values& values, const char* name) {
  return values.at(std::string("base_model.model.model.layers.1.self_attn.q_proj.") + name);
}

double largest(const at::Tensor& values) { return values.abs().max().item<double>(); }

TEST(LoraInit, BranchesBeginAtZero) {
  LoraOptions options = of_queries("true");
  options.lora_bias = true;
  const Values values = first_values(options);
  EXPECT_EQ(largest(of(values, "lora_B.weight")), 0);
  EXPECT_EQ(largest(of(values, "lora_B.bias")), 0);
  // kaiming_uniform_(a=sqrt(5)): up to 1 / sqrt(in).
  const double bound = 1 / std::sqrt(20.0);
  EXPECT_LE(largest(of(values, "lora_A.weight")), bound);
  EXPECT_GT(largest(of(values, "lora_A.weight")), 0.9 * bound);
}

TEST(LoraInit, WithoutPeftsBothAreALinearLayers) {
  LoraOptions options = of_queries("false");
  options.lora_bias = true;
  const Values values = first_values(options);
  const double bound = 1 / std::sqrt(8.0);  // of the rank
  for (const char* name : {"lora_B.weight", "lora_B.bias"}) {
    EXPECT_LE(largest(of(values, name)), bound) << name;
    EXPECT_GT(largest(of(values, name)), 0.7 * bound) << name;
  }
}

TEST(LoraInit, GaussianHasADeviationOfOneByTheRank) {
  const Values values = first_values(of_queries("gaussian"));
  EXPECT_EQ(largest(of(values, "lora_B.weight")), 0);
  const double deviation = of(values, "lora_A.weight").std().item<double>();
  EXPECT_NEAR(deviation * 8, 1, 0.2);
}

// Rows of B^T and A stay orthogonal to each other, so that their product is not zero and yet small.
TEST(LoraInit, OrthogonalPartsMeetNowhere) {
  const Values values = first_values(of_queries("orthogonal"));
  const at::Tensor a = of(values, "lora_A.weight"), b = of(values, "lora_B.weight");
  EXPECT_GT(largest(a), 0);
  EXPECT_GT(largest(b), 0);
  EXPECT_LT(largest(b.mm(a)), 1e-6);
  LoraOptions odd = of_queries("orthogonal");
  odd.r = 3;
  EXPECT_THAT(message_of<ConfigError>([&] { first_values(odd); }),
              HasSubstr("\"orthogonal\" with rank 3, expected an even rank"));
}

TEST(LoraInit, TheSeedAndThePlaceDecide) {
  const LoraOptions options = of_queries("true");
  const Values first = first_values(options), again = first_values(options),
               other = first_values(options, 4);
  for (const auto& [name, value] : first) {
    EXPECT_TRUE(at::equal(value, again.at(name)));
    EXPECT_EQ(at::equal(value, other.at(name)), name.ends_with("lora_B.weight"));
  }
}

TEST(LoraInit, VerasVectors) {
  LoraOptions options = of_queries("true");
  options.method = Method::kVera;
  options.d_initial = 0.25;
  const Values fixed = first_values(options);
  EXPECT_TRUE(at::equal(of(fixed, "vera_lambda_b"), at::zeros({20})));
  EXPECT_TRUE(at::equal(of(fixed, "vera_lambda_d"), at::full({8}, 0.25)));
  options.init_weights = "false";
  const Values drawn = first_values(options);
  EXPECT_TRUE(at::equal(of(drawn, "vera_lambda_b"), at::ones({20})));
  EXPECT_GT(of(drawn, "vera_lambda_d").std().item<double>(), 0.1);
}

TEST(LoraInit, NamesSayWhatTheyNeed) {
  struct Row {
    const char* init;
    bool changes_base, draws_directions;
  };
  for (const Row& row :
       {Row{"true", false, false}, Row{"false", false, false}, Row{"gaussian", false, false},
        Row{"orthogonal", false, false}, Row{"eva", false, false}, Row{"pissa", true, false},
        Row{"pissa_niter_4", true, true}, Row{"olora", true, false}, Row{"loftq", true, false}}) {
    LoraOptions options = of_queries(row.init);
    EXPECT_NO_THROW(check_init(row.init));
    EXPECT_EQ(changes_base(options), row.changes_base) << row.init;
    EXPECT_EQ(starts_from_base(options), row.changes_base) << row.init;
    EXPECT_EQ(draws_directions(options), row.draws_directions) << row.init;
    // Of another method the key says nothing.
    options.method = Method::kVera;
    EXPECT_FALSE(changes_base(options)) << row.init;
  }
  EXPECT_THROW(check_init("pissa_niter_"), ConfigError);
  EXPECT_THROW(check_init("corda"), ConfigError);
  EXPECT_NO_THROW(require_known_directions(of_queries("pissa"), "a"));
  EXPECT_THAT(
      message_of<ConfigError>([] { require_known_directions(of_queries("pissa_niter_4"), "a"); }),
      HasSubstr("a: found init_lora_weights pissa_niter_4"));
}

TEST(LoraInit, CodesStayAsTheyAre) {
  LoraOptions options = of_queries("loftq");
  options.keeps_base = true;
  EXPECT_FALSE(changes_base(options));
  EXPECT_TRUE(starts_from_base(options));
}

std::string line_of(LoraOptions options) {
  const auto model = tiny_llama();
  options.target_modules = {"q_proj", "v_proj"};
  options.r = 2;
  const auto adapter = attach_lora(*model, options);
  return trainable_parameters_line(*model);
}

TEST(Counts, TheLineIsPefts) {
  LoraOptions options;
  EXPECT_EQ(line_of(options), "trainable params: 420 || all params: 10,680 || trainable%: 3.9326");
  options.use_dora = true;
  EXPECT_EQ(line_of(options), "trainable params: 510 || all params: 10,770 || trainable%: 4.7354");
  options.use_dora = false;
  options.modules_to_save = {"lm_head"};
  EXPECT_EQ(line_of(options),
            "trainable params: 1,160 || all params: 11,420 || trainable%: 10.1576");
}

TEST(Counts, BuffersAreVerasMatricesAndTheRowsOfTokens) {
  const auto bytes_of = [](const LoraOptions& settings) {
    const auto model = tiny_llama();
    return buffer_bytes(*attach_lora(*model, settings));
  };
  LoraOptions options = of_queries("true");
  EXPECT_EQ(bytes_of(options), 0);
  options.trainable_tokens = {3, 9};
  EXPECT_EQ(bytes_of(options), 2 * 20 * 4);
  options.trainable_tokens.clear();
  options.method = Method::kVera;
  EXPECT_EQ(bytes_of(options), (8 * 20 + 20 * 8) * 4);
}

}  // namespace
}  // namespace strata::adapters
