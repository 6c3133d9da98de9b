// Oracle: copies of one model have one fingerprint, every other model another.
#include "strata/hf/base_fingerprint.h"

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/float16.h"

namespace strata::hf {
namespace {

using strata::testing::TemporaryFolder;

struct Recipe {
  DType dtype = DType::kF32;
  int64_t changed = -1;  // this element of the second matrix is another
  bool has_head = false;
  const char* config = "{}";
  int64_t rows = 40;
};

std::string fingerprint_of(const Recipe& recipe) {
  TemporaryFolder folder;
  write_file_atomically(folder / "config.json", recipe.config);
  std::vector<TensorSpec> specs{{"a.weight", recipe.dtype, {recipe.rows, 50}},
                                {"b.weight", recipe.dtype, {100, 50}},
                                {"norm.weight", recipe.dtype, {50}}};
  if (recipe.has_head) specs.push_back({"lm_head.weight", recipe.dtype, {100, 50}});
  SafetensorsWriter writer(folder / "model.safetensors", specs);
  for (const TensorInfo& info : writer.tensors()) {
    std::string bytes;
    for (int64_t i = 0; i < info.numel(); ++i) {
      float value = static_cast<float>(i % 251) / 8;  // exact in bf16
      if (info.name == "b.weight" && i == recipe.changed) value += 1;
      if (recipe.dtype == DType::kF32) {
        bytes.append(reinterpret_cast<const char*>(&value), 4);
      } else {
        const uint16_t bits = float_to_bf16(value);
        bytes.append(reinterpret_cast<const char*>(&bits), 2);
      }
    }
    writer.write(info.name, std::as_bytes(std::span(bytes)));
  }
  writer.finish();
  return base_fingerprint(ModelFolder(folder.path()));
}

TEST(BaseFingerprint, IsThatOfTheWeightsNotOfTheFile) {
  const std::string expected = fingerprint_of({});
  EXPECT_EQ(expected.size(), 16U);
  EXPECT_EQ(fingerprint_of({.dtype = DType::kBF16}), expected);
  EXPECT_EQ(fingerprint_of({.has_head = true}), expected);
  EXPECT_EQ(fingerprint_of({.config = R"({"model_type": "llama"})"}), expected);
  EXPECT_NE(fingerprint_of({.changed = 3}), expected);
  EXPECT_NE(fingerprint_of({.changed = 2600}), expected);
  EXPECT_NE(fingerprint_of({.rows = 41}), expected);
}

// Bytes, whatever they mean.
TEST(BaseFingerprint, OfCodesIsTheirOwn) {
  const char* config = R"({"quantization_config": {}})";
  const std::string expected = fingerprint_of({.config = config});
  EXPECT_EQ(expected.size(), 16U);
  EXPECT_NE(expected, fingerprint_of({}));
  EXPECT_EQ(fingerprint_of({.config = config}), expected);
  EXPECT_NE(fingerprint_of({.changed = 3, .config = config}), expected);
  EXPECT_NE(fingerprint_of({.has_head = true, .config = config}), expected);
}

TEST(BaseFingerprint, MarkIsReadAsItIsWritten) {
  for (const char* text : {"0123456789abcdef", "0123456789abcdef as nf4, blocks of 64",
                           "0123456789abcdef as int8 of the weights as stored, one scale a row",
                           "0123456789abcdef as stored nf4, blocks of 64, double"}) {
    const BaseMark mark = parse_base_mark(text);
    EXPECT_EQ(mark.fingerprint, "0123456789abcdef");
    EXPECT_EQ(mark.text(), text);
    EXPECT_EQ(mark.is_of_known_weights(),
              std::string(text).find("as stored n") == std::string::npos);
  }
}

}  // namespace
}  // namespace strata::hf
