// Oracle: quantization_config as published models have it, and code times scale, element by
// element.
#include "strata/hf/fp8.h"

#include <cmath>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/float8.h"

namespace strata::hf {
namespace {

using strata::testing::TemporaryFolder;
using ::testing::ElementsAre;
using Tile = std::array<int64_t, 2>;

Json config_of(const std::string& entry) {
  return parse_json(R"({"quantization_config": )" + entry + "}", "test");
}

std::vector<Tile> tiles_of(const std::string& entry) {
  const Json config = config_of(entry);
  EXPECT_TRUE(announces_fp8(config)) << entry;
  return read_fp8_form(config).tiles;
}

std::string compressed(const std::string& weights, const std::string& more = "") {
  return R"({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
             "kv_cache_scheme": null, "quantization_status": "compressed", "config_groups": {
             "group_0": {"input_activations": {"dynamic": true, "num_bits": 8, "type": "float"},
                         "targets": ["Linear"], "weights": )" +
         weights + "}}" + more + "}";
}

std::string group(const std::string& strategy, const std::string& more = "") {
  return R"({"num_bits": 8, "type": "float", "symmetric": true, "dynamic": false, "strategy": ")" +
         strategy + "\"" + more + "}";
}

TEST(Fp8Form, OfPublishedModels) {
  const Tile tile = {128, 128}, row = {1, 0}, matrix = {0, 0};
  EXPECT_THAT(tiles_of(R"({"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                           "weight_block_size": [128, 128], "scale_fmt": "ue8m0"})"),
              ElementsAre(tile));
  EXPECT_THAT(tiles_of(R"({"activation_scheme": "dynamic", "fmt": "float8_e4m3fn",
                           "quant_method": "fp8", "weight_block_size": [128, 128],
                           "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]})"),
              ElementsAre(tile));
  EXPECT_THAT(tiles_of(R"({"activation_scheme": "static", "quant_method": "fp8",
                           "weight_block_size": null, "dequantize": false})"),
              ElementsAre(matrix));
  EXPECT_THAT(tiles_of(R"({"quant_method": "fp8", "activation_scheme": "dynamic"})"),
              ElementsAre(tile));
  EXPECT_THAT(tiles_of(R"({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
                           "modules_to_not_convert": ["model.layers.0.mlp.down_proj"]})"),
              ElementsAre(row));
  EXPECT_THAT(tiles_of(compressed(group("channel"))), ElementsAre(row));
  EXPECT_THAT(tiles_of(compressed(group("tensor"))), ElementsAre(matrix));
  for (const char* size : {"[128, 128]", "\"128x128\""}) {
    const std::string more = std::string(R"(, "block_structure": )") + size;
    EXPECT_THAT(tiles_of(compressed(group("block", more))), ElementsAre(tile));
  }
  const Tile of_group = {1, 64};
  EXPECT_THAT(tiles_of(compressed(group("group", R"(, "group_size": 64)"))), ElementsAre(of_group));
}

TEST(Fp8Form, OthersAreNone) {
  for (const char* entry :
       {R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})",
        R"({"quant_method": "bitsandbytes", "load_in_4bit": true})", R"({"quant_method": "mxfp4"})",
        "null", "3", R"({"quant_method": 8})", "{}"}) {
    EXPECT_FALSE(announces_fp8(config_of(entry))) << entry;
  }
  EXPECT_FALSE(announces_fp8(Json::object()));
}

TEST(Fp8Form, WhatIsNotReadIsNamed) {
  const auto message = [](const std::string& entry) {
    try {
      (void)read_fp8_form(config_of(entry));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message(R"({"quant_method": "fp8", "fmt": "e5m2"})"), HasSubstr("fmt: found"));
  EXPECT_THAT(message(R"({"quant_method": "fp8", "weight_block_size": [128]})"),
              HasSubstr("weight_block_size: found"));
  EXPECT_THAT(message(compressed(group("block"))),
              HasSubstr("config_groups.group_0.weights.block_structure: found null"));
  EXPECT_THAT(message(compressed(group("token"))),
              HasSubstr("config_groups.group_0.weights.strategy: found"));
  EXPECT_THAT(message(compressed(R"({"num_bits": 8, "type": "int"})")),
              HasSubstr("expected type float of 8 bits"));
  EXPECT_THAT(message(compressed(R"({"num_bits": 8, "type": "float", "symmetric": false})")),
              HasSubstr("expected symmetric values"));
}

struct Stored {
  std::vector<int64_t> codes, scales;
  std::string entry;
  Tile tile;  // that is expected
};

// Codes that count up, scales that are powers of two: a product has one value.
class Fp8Folder {
 public:
  explicit Fp8Folder(const Stored& stored) : stored_(stored) {
    write_file_atomically(folder_ / "config.json",
                          R"({"quantization_config": )" + stored.entry + "}");
    SafetensorsWriter writer(folder_ / "model.safetensors",
                             {{"a.weight", DType::kF8E4M3, stored.codes},
                              {"a.weight_scale_inv", DType::kF32, stored.scales}});
    for (const TensorInfo& info : writer.tensors()) {
      std::string bytes;
      for (int64_t i = 0; i < info.numel(); ++i) {
        const float scale = std::ldexp(1.0f, static_cast<int>(i % 40) - 20);
        if (info.dtype == DType::kF8E4M3) bytes += static_cast<char>(1 + i % 126);
        if (info.dtype == DType::kF32) bytes.append(reinterpret_cast<const char*>(&scale), 4);
      }
      writer.write(info.name, std::as_bytes(std::span(bytes)));
    }
    writer.finish();
    model_.emplace(folder_.path());
  }

  const ModelFolder& model() const { return *model_; }

  float expected(int64_t index) const {
    const auto& shape = stored_.codes;
    const int64_t rows = shape[shape.size() - 2], columns = shape.back();
    const int64_t matrix = index / (rows * columns), row = index / columns % rows;
    const int64_t down = (rows + stored_.tile[0] - 1) / stored_.tile[0];
    const int64_t across = (columns + stored_.tile[1] - 1) / stored_.tile[1];
    const int64_t place =
        (matrix * down + row / stored_.tile[0]) * across + index % columns / stored_.tile[1];
    return fp8_e4m3_to_float(static_cast<uint8_t>(1 + index % 126)) *
           std::ldexp(1.0f, static_cast<int>(place % 40) - 20);
  }

 private:
  Stored stored_;
  TemporaryFolder folder_;
  std::optional<ModelFolder> model_;
};

std::string tiles(const std::string& size) {
  return R"({"quant_method": "fp8", "weight_block_size": )" + size + "}";
}

// Every range: those that begin and end inside tiles and rows among them.
TEST(Fp8Weight, EveryRangeIsCodeTimesScale) {
  const std::vector<Stored> all = {
      {{7, 9}, {4, 3}, tiles("[2, 4]"), {2, 4}},
      {{3, 5, 6}, {3, 2, 2}, tiles("[3, 4]"), {3, 4}},
      {{3, 5, 6}, {3, 1, 6}, tiles("[128, 128]"), {5, 1}},  // as many equal parts
      {{3, 5, 6}, {3, 1, 1}, tiles("null"), {5, 6}},
      {{6, 8}, {3, 2}, tiles("[128, 128]"), {2, 4}},
      {{5, 4}, {5, 1}, compressed(group("channel")), {1, 4}},
      {{19, 4}, {3, 1}, compressed(group("block", R"(, "block_structure": [8, 8])")), {8, 8}},
      {{18, 4}, {3, 1}, compressed(group("block", R"(, "block_structure": [8, 8])")), {8, 8}},
  };
  for (const Stored& stored : all) {
    const Fp8Folder folder(stored);
    const auto weight = find_fp8_weight(folder.model(), "a.weight");
    ASSERT_TRUE(weight.has_value());
    EXPECT_EQ((Tile{weight->tile_rows, weight->tile_columns}), stored.tile) << stored.entry;
    const int64_t numel = weight->codes->numel();
    for (int64_t begin = 0; begin < numel; ++begin) {
      std::vector<float> out(static_cast<size_t>(numel - begin));
      read_fp8(folder.model(), *weight, begin, out);
      for (int64_t i = begin; i < numel; ++i) {
        ASSERT_EQ(out[static_cast<size_t>(i - begin)], folder.expected(i))
            << stored.entry << " " << begin << " " << i;
      }
    }
  }
}

TEST(Fp8Weight, PartsThatNobodyAnnouncedAreRefused) {
  const Fp8Folder folder(
      {{18, 4}, {2, 1}, compressed(group("block", R"(, "block_structure": [8, 8])")), {8, 8}});
  EXPECT_THROW((void)find_fp8_weight(folder.model(), "a.weight"), FormatError);
  EXPECT_FALSE(find_readable_fp8(folder.model(), "a.weight").has_value());
}

}  // namespace
}  // namespace strata::hf
