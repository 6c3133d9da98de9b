// Oracle: the line by hand.
#include "strata/train/saving/result_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace strata::train {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

config::RunConfig run_of(const std::string& recipe) {
  config::RunConfig config;
  config.recipe = recipe;
  config.model.model_name_or_path = "org/base";
  config.train.output_dir = "outputs/first";
  return config;
}

TEST(ResultLine, NamesAModelAndHowToAskIt) {
  EXPECT_EQ(result_line(run_of("sft"), /*is_adapter=*/false),
            "result: outputs/first (model); report: outputs/first/report.html; try it: strata chat "
            "--model_name_or_path outputs/first");
}

TEST(ResultLine, NamesAnAdapterWithItsBase) {
  config::RunConfig config = run_of("dpo");
  config.model.cache_dir = "my cache";
  config.train.output_dir = "out it's";
  EXPECT_EQ(result_line(config, /*is_adapter=*/true),
            "result: out it's (adapter); report: out it's/report.html; try it: strata chat "
            "--model_name_or_path org/base --adapter_name_or_path 'out it'\\''s' --cache_dir 'my "
            "cache'");
}

TEST(ResultLine, LoadsTheBaseAsTheRunDid) {
  config::RunConfig config = run_of("sft");
  config.quantization.load_in_4bit = true;
  EXPECT_THAT(result_line(config, /*is_adapter=*/true),
              EndsWith("--adapter_name_or_path outputs/first --load_in_4bit"));
  config.quantization.bnb_4bit_use_double_quant = true;
  config.quantization.bnb_4bit_quant_type = "fp4";
  EXPECT_THAT(result_line(config, /*is_adapter=*/true),
              EndsWith(" --load_in_4bit --bnb_4bit_quant_type fp4 --bnb_4bit_use_double_quant"));
  config.quantization = {};
  config.quantization.load_in_8bit = true;
  config.quantization.llm_int8_threshold = 5;
  EXPECT_THAT(result_line(config, /*is_adapter=*/true),
              EndsWith(" --load_in_8bit --llm_int8_threshold 5.0"));
}

TEST(ResultLine, OffersNoChatWhereNothingAnswers) {
  for (const char* recipe : {"seq2seq", "peft_lora_seq2seq", "reward", "classify"}) {
    for (const bool is_adapter : {false, true}) {
      EXPECT_THAT(result_line(run_of(recipe), is_adapter), EndsWith("report.html"));
    }
  }
  // A base of random weights is nowhere.
  config::RunConfig config = run_of("sft");
  config.model.model_name_or_path.clear();
  EXPECT_THAT(result_line(config, /*is_adapter=*/true), Not(HasSubstr("chat")));
  EXPECT_THAT(result_line(config, /*is_adapter=*/false), HasSubstr("chat"));
}

}  // namespace
}  // namespace strata::train
