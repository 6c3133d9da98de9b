// Oracle: the settings that a checkpoint in codes of bitsandbytes makes idle, named by hand.
#include "strata/train/setup/base_quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace strata::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(QuantizationWarnings, NameEverySettingWithoutEffect) {
  const Json codes = {
      {"quantization_config", {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}}}};
  config::QuantizationConfig config;
  EXPECT_THAT(quantization_warnings(config, codes), IsEmpty());
  config.load_in_4bit = config.mxfp4_dequantize = true;
  EXPECT_THAT(
      quantization_warnings(config, codes),
      ElementsAre(StartsWith("mxfp4_dequantize: has no effect; the checkpoint holds nothing"),
                  StartsWith("load_in_4bit: has no effect")));
  EXPECT_THAT(quantization_warnings(config, Json::object()),
              ElementsAre(StartsWith("mxfp4_dequantize: has no effect")));
}

}  // namespace
}  // namespace strata::train
