// Oracle: copies of one model have one fingerprint however they lie in files, every other model
// another.
#include "strata/hf/weights_fingerprint.h"

#include <gtest/gtest.h>

#include "../temporary_folder.h"

namespace strata::hf {
namespace {

using strata::testing::TemporaryFolder;

struct Copy {
  int64_t tensors = 3;
  int64_t values = 40;
  int64_t changed = -1;  // the middle of this tensor is another
  DType dtype = DType::kU8;
  int64_t parts = 1;  // files
};

std::string fingerprint_of(const Copy& copy) {
  const TemporaryFolder folder;
  folder.put("config.json", R"({"model_type": "llama"})");
  std::string weight_map;
  for (int64_t part = 0; part < copy.parts; ++part) {
    const std::string file =
        copy.parts == 1 ? "model.safetensors" : "part-" + std::to_string(part) + ".safetensors";
    std::vector<TensorSpec> specs;
    for (int64_t i = part; i < copy.tensors; i += copy.parts) {
      specs.push_back({"t" + std::to_string(i), copy.dtype, {copy.values}});
      weight_map +=
          (weight_map.empty() ? "\"t" : ", \"t") + std::to_string(i) + "\": \"" + file + "\"";
    }
    SafetensorsWriter writer(folder / file, specs);
    for (const TensorSpec& spec : specs) {
      std::vector<std::byte> bytes(static_cast<size_t>(copy.values), std::byte{7});
      if (spec.name == "t" + std::to_string(copy.changed)) bytes[bytes.size() / 2] = std::byte{8};
      writer.write(spec.name, bytes);
    }
    writer.finish();
  }
  if (copy.parts > 1) {
    folder.put("model.safetensors.index.json", "{\"weight_map\": {" + weight_map + "}}");
  }
  return weights_fingerprint(ModelFolder(folder.path()));
}

TEST(WeightsFingerprint, IsThatOfTheWeightsNotOfTheirFiles) {
  const std::string expected = fingerprint_of({});
  EXPECT_EQ(expected.size(), 16U);
  EXPECT_EQ(fingerprint_of({.parts = 2}), expected);
  for (int64_t i = 0; i < 3; ++i) EXPECT_NE(fingerprint_of({.changed = i}), expected);
  EXPECT_NE(fingerprint_of({.values = 41}), expected);
  EXPECT_NE(fingerprint_of({.dtype = DType::kI8}), expected);
  EXPECT_NE(fingerprint_of({.tensors = 4}), expected);
}

TEST(WeightsFingerprint, LooksIntoLongTensorsAndEmptyOnes) {
  EXPECT_NE(fingerprint_of({.values = 5000, .changed = 1}), fingerprint_of({.values = 5000}));
  EXPECT_EQ(fingerprint_of({.values = 0}), fingerprint_of({.values = 0}));
}

// Of as many as a mixture of experts has, some are looked into, spread over all of them.
TEST(WeightsFingerprint, LooksIntoSomeOfManyTensors) {
  const std::string expected = fingerprint_of({.tensors = 2000});
  int num_seen = 0;
  for (int64_t i = 0; i < 2000; i += 100) {
    num_seen += fingerprint_of({.tensors = 2000, .changed = i}) != expected ? 1 : 0;
  }
  EXPECT_GT(num_seen, 1);
  EXPECT_LT(num_seen, 12);
}

}  // namespace
}  // namespace strata::hf
