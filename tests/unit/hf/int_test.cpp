// Oracle: quantization_config as published models have it; codes that are put into words one by
// one as the formats' own programs do, and code less zero times scale, element by element.
#include <cmath>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/float16.h"
#include "strata/hf/base_fingerprint.h"
#include "strata/hf/element.h"
#include "strata/hf/fp8.h"
#include "strata/hf/int_codes.h"
#include "strata/hf/int_values.h"

namespace strata::hf {
namespace {

using strata::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json config_of(const std::string& entry) {
  return parse_json(R"({"quantization_config": )" + entry + "}", "test");
}

IntForm form_of(const std::string& entry) {
  const Json config = config_of(entry);
  EXPECT_TRUE(announces_ints(config)) << entry;
  EXPECT_FALSE(announces_fp8(config)) << entry;
  return read_int_form(config);
}

std::string message_of(const std::string& entry) {
  try {
    (void)read_int_form(config_of(entry));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string packed(const std::string& weights, const std::string& more = "") {
  return R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
             "kv_cache_scheme": null, "quantization_status": "compressed", "config_groups": {
             "group_0": {"input_activations": null, "output_activations": null,
                         "targets": ["Linear"], "weights": )" +
         weights + "}}" + more + "}";
}

std::string group(const std::string& entries) {
  return R"({"type": "int", "dynamic": false, "actorder": null, "block_structure": null,
             "observer": "minmax", "observer_kwargs": {}, )" +
         entries + "}";
}

TEST(IntForm, OfGptq) {
  const IntForm form = form_of(
      R"({"bits": 4, "group_size": 128, "damp_percent": 0.1, "desc_act": true, "sym": true,
          "static_groups": false, "true_sequential": true, "model_name_or_path": null,
          "model_file_base_name": "model", "quant_method": "gptq", "is_marlin_format": false})");
  EXPECT_EQ(form.layout, IntLayout::kGptq);
  EXPECT_TRUE(form.zeros_are_less);
  ASSERT_EQ(form.schemes.size(), 1u);
  EXPECT_EQ(form.schemes[0].bits, 4);
  EXPECT_EQ(form.schemes[0].group, 128);
  EXPECT_TRUE(form.schemes[0].has_order);
  EXPECT_FALSE(
      form_of(R"({"quant_method": "gptq", "bits": 4, "desc_act": false})").schemes[0].has_order);
  EXPECT_FALSE(form_of(R"({"quant_method": "gptq", "bits": 8, "group_size": -1,
                           "checkpoint_format": "gptq_v2", "pack_dtype": "int32"})")
                   .zeros_are_less);
  EXPECT_FALSE(
      form_of(R"({"quant_method": "gptq", "bits": 8, "format": "GPTQ_V2"})").zeros_are_less);
  EXPECT_TRUE(form_of(R"({"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq",
                          "format": "gptq_v2"})")
                  .zeros_are_less);
  EXPECT_EQ(form_of(R"({"quant_method": "gptq", "bits": 8, "group_size": -1})").schemes[0].group,
            0);
  EXPECT_EQ(form_of(R"({"quant_method": "gptq", "bits": 4})").schemes[0].group, 128);
}

TEST(IntForm, OfSingleLayersOfGptq) {
  const IntForm form = form_of(
      R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {
          "+:.*down_proj": {"bits": 8, "group_size": -1}, ".*o_proj": {"group_size": 64},
          "-:.*q_proj": {}}})");
  ASSERT_EQ(form.schemes.size(), 3u);
  EXPECT_EQ(form.schemes[1].bits, 8);
  EXPECT_EQ(form.schemes[1].group, 0);
  EXPECT_EQ(form.schemes[2].bits, 4);
  EXPECT_EQ(form.schemes[2].group, 64);
}

TEST(IntForm, OfAwq) {
  const IntForm form = form_of(R"({"bits": 4, "group_size": 128, "modules_to_not_convert": null,
                                   "quant_method": "awq", "version": "gemm", "zero_point": true})");
  EXPECT_EQ(form.layout, IntLayout::kAwq);
  EXPECT_EQ(form.schemes[0].bits, 4);
  EXPECT_EQ(form.schemes[0].group, 128);
  EXPECT_EQ(form_of(R"({"w_bit": 4, "q_group_size": 64, "version": "GEMM", "quant_method": "awq"})")
                .schemes[0]
                .group,
            64);
}

TEST(IntForm, OfCompressedTensors) {
  const IntForm form = form_of(
      packed(group(R"("num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": true)")));
  EXPECT_EQ(form.layout, IntLayout::kCompressed);
  EXPECT_FALSE(form.zeros_are_less);
  EXPECT_EQ(form.schemes[0].bits, 4);
  EXPECT_EQ(form.schemes[0].group, 32);
  EXPECT_TRUE(form.schemes[0].is_symmetric);
  const IntForm rows =
      form_of(packed(group(R"("num_bits": 8, "strategy": "channel", "group_size": null,
                      "symmetric": false)")));
  EXPECT_EQ(rows.schemes[0].bits, 8);
  EXPECT_EQ(rows.schemes[0].group, 0);
  EXPECT_FALSE(rows.schemes[0].is_symmetric);
  // Kimi K2.5's entry is its language model's.
  const Json whole = parse_json(
      R"({"text_config": {"quantization_config": )" +
          packed(group(R"("num_bits": 4, "strategy": "group", "group_size": 32)")) + "}}",
      "test");
  EXPECT_TRUE(announces_ints(whole));
  EXPECT_EQ(read_int_form(whole).schemes[0].group, 32);
}

TEST(IntForm, OthersAreNone) {
  for (const char* entry :
       {R"({"quant_method": "compressed-tensors", "format": "float-quantized"})",
        R"({"quant_method": "compressed-tensors", "format": "int-quantized"})",
        R"({"quant_method": "bitsandbytes", "load_in_4bit": true})", R"({"quant_method": "mxfp4"})",
        "null", "3", R"({"quant_method": 8})", "{}"}) {
    EXPECT_FALSE(announces_ints(config_of(entry))) << entry;
  }
  EXPECT_FALSE(announces_ints(Json::object()));
}

TEST(IntForm, WhatIsNotReadIsNamed) {
  const auto gptq = [](const std::string& entries) {
    return message_of(R"({"quant_method": "gptq", )" + entries + "}");
  };
  EXPECT_THAT(gptq(R"("bits": 3)"), HasSubstr("bits: found 3, expected 4 or 8"));
  EXPECT_THAT(gptq(R"("sym": true)"), HasSubstr("bits: found null"));
  EXPECT_THAT(gptq(R"("bits": 4, "group_size": 0)"), HasSubstr("group_size: found 0"));
  EXPECT_THAT(gptq(R"("bits": 4, "checkpoint_format": "marlin")"),
              HasSubstr("checkpoint_format: found \"marlin\", expected gptq"));
  EXPECT_THAT(gptq(R"("bits": 4, "is_marlin_format": true)"), HasSubstr("is_marlin_format"));
  EXPECT_THAT(gptq(R"("bits": 4, "pack_dtype": "int16")"), HasSubstr("pack_dtype: found"));
  EXPECT_THAT(gptq(R"("bits": 4, "adapter": {"name": "lora"})"), HasSubstr("adapter: found"));
  EXPECT_THAT(gptq(R"("bits": 4, "dynamic": {"a": {"bits": 3}})"),
              HasSubstr("dynamic.a.bits: found 3"));
  EXPECT_THAT(gptq(R"("bits": 4, "dynamic": {"a": {"format": "marlin"}})"),
              HasSubstr("dynamic.a.format: found"));
  EXPECT_THAT(message_of(R"({"quant_method": "awq", "bits": 4, "version": "gemv"})"),
              HasSubstr("version: found \"gemv\", expected gemm"));
  EXPECT_THAT(message_of(R"({"quant_method": "awq", "bits": 8})"), HasSubstr("bits: found 8"));
  EXPECT_THAT(message_of(R"({"quant_method": "awq", "backend": "llm-awq"})"), HasSubstr("backend"));
  const auto of_group = [](const std::string& entries) {
    return message_of(packed(group(entries)));
  };
  const std::string key = "config_groups.group_0.weights.";
  EXPECT_THAT(of_group(R"("num_bits": 5, "strategy": "channel")"), HasSubstr(key + "num_bits"));
  EXPECT_THAT(of_group(R"("num_bits": 4, "strategy": "tensor")"),
              HasSubstr(key + "strategy: found \"tensor\", expected group or channel"));
  EXPECT_THAT(of_group(R"("num_bits": 4, "strategy": "group")"), HasSubstr(key + "group_size"));
  EXPECT_THAT(message_of(packed(R"({"num_bits": 4, "type": "float", "strategy": "channel"})")),
              HasSubstr(key + "type: found \"float\""));
  EXPECT_THAT(message_of(packed("null")), HasSubstr("config_groups: found"));
  const std::string fine = group(R"("num_bits": 4, "strategy": "channel")");
  EXPECT_EQ(message_of(packed(fine)), "");
  EXPECT_THAT(message_of(packed(fine, R"(, "transform_config": {"a": 1})")),
              HasSubstr("transform_config: found"));
  EXPECT_THAT(message_of(packed(fine, R"(, "sparsity_config": {"format": "sparse-24-bitmask"})")),
              HasSubstr("sparsity_config: found"));
  EXPECT_THAT(message_of(packed(fine, R"(, "moe_sparsity_config": {"a": 1})")),
              HasSubstr("moe_sparsity_config: found"));
}

struct Stored {
  std::string name;  // in messages
  IntLayout layout;
  int64_t bits, rows, columns, group;
  std::string entry;
  DType type = DType::kF16;
  bool has_zeros = true;
  bool has_bytes_as_zeros = false;
  bool has_order = false;
  int64_t less = 0;
};

// A matrix whose every code, zero, scale and group is a function of its place.
class IntFolder {
 public:
  explicit IntFolder(const Stored& stored) : stored_(stored) {
    groups_ = (stored.columns + stored.group - 1) / stored.group;
    write_file_atomically(folder_ / "config.json",
                          R"({"quantization_config": )" + stored.entry + "}");
    const bool is_packed = stored.layout == IntLayout::kCompressed;
    put_codes();
    if (stored.has_zeros) put_zeros();
    put_scales();
    if (stored.has_order) {
      std::vector<int32_t> order;
      for (int64_t c = 0; c < stored.columns; ++c)
        order.push_back(static_cast<int32_t>(group_of(c)));
      add(is_packed ? "a.weight_g_idx" : "a.g_idx", DType::kI32, {stored.columns}, order);
    }
    if (is_packed) {
      add("a.weight_shape", DType::kI64, {2}, std::vector<int64_t>{stored.rows, stored.columns});
    }
    write();
    model_.emplace(folder_.path());
  }

  const ModelFolder& model() const { return *model_; }

  float expected(int64_t index) const {
    const int64_t row = index / stored_.columns, column = index % stored_.columns;
    const int64_t group = group_of(column);
    const auto difference = static_cast<float>(code(row, column) - zero(row, group));
    return rounded(difference * scale(row, group));
  }

  // To the type of the scales.
  float rounded(float value) const {
    if (stored_.type == DType::kF32) return value;
    return stored_.type == DType::kF16 ? fp16_to_float(float_to_fp16(value))
                                       : bf16_to_float(float_to_bf16(value));
  }

 private:
  int64_t limit() const { return int64_t{1} << stored_.bits; }
  int64_t code(int64_t row, int64_t column) const { return (row * 7 + column * 5 + 3) % limit(); }
  int64_t zero(int64_t row, int64_t group) const {
    return stored_.has_zeros ? (row * 3 + group * 5 + 1) % limit() : limit() / 2;
  }
  // Of every column that is no multiple of a group's.
  int64_t group_of(int64_t column) const {
    return stored_.has_order ? (column * 3 + 1) % groups_ : column / stored_.group;
  }
  float scale(int64_t row, int64_t group) const {
    const int64_t place = row * groups_ + group;
    return rounded(std::ldexp(1.0f + static_cast<float>(place * 37 % 101) / 101, -9));
  }

  static void put(std::vector<int32_t>& words, int64_t word, int64_t shift, int64_t field) {
    auto& to = words[static_cast<size_t>(word)];
    to = static_cast<int32_t>(static_cast<uint32_t>(to) | static_cast<uint32_t>(field) << shift);
  }
  int64_t per() const { return 32 / stored_.bits; }
  int64_t words_of(int64_t codes) const { return (codes + per() - 1) / per(); }

  // AutoAWQ packs rows 0, 2, 4, 6, 1, 3, 5, 7 of eight.
  static int64_t awq_shift(int64_t row) {
    constexpr int64_t kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
    for (int64_t i = 0; i < 8; ++i) {
      if (kOrder[i] == row % 8) return 4 * i;
    }
    return 0;
  }

  void put_codes() {
    const int64_t rows = stored_.rows, columns = stored_.columns;
    const bool is_packed = stored_.layout == IntLayout::kCompressed;
    std::vector<int64_t> shape = {words_of(columns), rows};
    if (stored_.layout == IntLayout::kAwq) shape = {columns, rows / 8};
    if (is_packed) shape = {rows, words_of(columns)};
    std::vector<int32_t> words(static_cast<size_t>(shape[0] * shape[1]));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t shift = c % per() * stored_.bits;
        if (stored_.layout == IntLayout::kAwq) {
          put(words, c * (rows / 8) + r / 8, awq_shift(r), code(r, c));
        } else if (is_packed) {
          put(words, r * shape[1] + c / per(), shift, code(r, c));
        } else {
          put(words, c / per() * rows + r, shift, code(r, c));
        }
      }
    }
    add(is_packed ? "a.weight_packed" : "a.qweight", DType::kI32, shape, words);
  }

  void put_zeros() {
    const int64_t rows = stored_.rows;
    if (stored_.has_bytes_as_zeros) {
      std::vector<int8_t> bytes;
      for (int64_t i = 0; i < rows * groups_; ++i) {
        bytes.push_back(static_cast<int8_t>(zero(i / groups_, i % groups_) - limit() / 2));
      }
      add("a.weight_zero_point", DType::kI8, {rows, groups_}, bytes);
      return;
    }
    const bool is_packed = stored_.layout == IntLayout::kCompressed;
    std::vector<int32_t> words(static_cast<size_t>(groups_ * words_of(rows)));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t g = 0; g < groups_; ++g) {
        const int64_t field = (zero(r, g) - stored_.less + limit()) % limit();
        const int64_t shift = r % per() * stored_.bits;
        if (is_packed) {
          put(words, r / per() * groups_ + g, shift, field);
        } else {
          const bool is_awq = stored_.layout == IntLayout::kAwq;
          put(words, g * words_of(rows) + r / per(), is_awq ? awq_shift(r) : shift, field);
        }
      }
    }
    if (is_packed) add("a.weight_zero_point", DType::kI32, {words_of(rows), groups_}, words);
    if (!is_packed) add("a.qzeros", DType::kI32, {groups_, words_of(rows)}, words);
  }

  void put_scales() {
    const bool is_packed = stored_.layout == IntLayout::kCompressed;
    std::vector<float> wide;
    for (int64_t i = 0; i < stored_.rows * groups_; ++i) {
      wide.push_back(is_packed ? scale(i / groups_, i % groups_)
                               : scale(i % stored_.rows, i / stored_.rows));
    }
    const std::string name = is_packed ? "a.weight_scale" : "a.scales";
    const std::vector<int64_t> shape =
        is_packed ? std::vector{stored_.rows, groups_} : std::vector{groups_, stored_.rows};
    if (stored_.type == DType::kF32) return add(name, stored_.type, shape, wide);
    std::vector<uint16_t> narrow;
    for (const float value : wide) {
      narrow.push_back(stored_.type == DType::kF16 ? float_to_fp16(value) : float_to_bf16(value));
    }
    add(name, stored_.type, shape, narrow);
  }

  template <typename T>
  void add(const std::string& name, DType type, const std::vector<int64_t>& shape,
           const std::vector<T>& values) {
    specs_.push_back({name, type, shape});
    const auto bytes = std::as_bytes(std::span(values));
    bytes_.emplace_back(bytes.begin(), bytes.end());
  }

  void write() {
    SafetensorsWriter writer(folder_ / "model.safetensors", specs_);
    for (size_t i = 0; i < specs_.size(); ++i) writer.write(specs_[i].name, bytes_[i]);
    writer.finish();
  }

  Stored stored_;
  int64_t groups_ = 0;
  std::vector<TensorSpec> specs_;
  std::vector<std::vector<std::byte>> bytes_;
  TemporaryFolder folder_;
  std::optional<ModelFolder> model_;
};

std::string gptq(int64_t bits, int64_t group, const std::string& format = "gptq") {
  return fmt::format(R"({{"quant_method": "gptq", "bits": {}, "group_size": {},
                          "checkpoint_format": "{}"}})",
                     bits, group, format);
}

std::string packed_groups(int64_t bits, int64_t size, bool is_symmetric = true) {
  return packed(
      group(fmt::format(R"("num_bits": {}, "strategy": "group", "group_size": {}, "symmetric": {})",
                        bits, size, is_symmetric)));
}

Stored one_less(Stored stored) {
  stored.less = 1;
  return stored;
}

Stored in_an_order(Stored stored) {
  stored.has_order = true;
  return stored;
}

std::vector<Stored> all_kinds() {
  const std::string awq = R"({"quant_method": "awq", "bits": 4, "group_size": 4})";
  const std::string rows = packed(group(R"("num_bits": 8, "strategy": "channel")"));
  constexpr auto kGptq = IntLayout::kGptq, kAwq = IntLayout::kAwq, kPacked = IntLayout::kCompressed;
  constexpr auto kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;
  return {
      one_less({"gptq", kGptq, 4, 16, 24, 8, gptq(4, 8)}),
      {"gptq_v2", kGptq, 4, 8, 16, 8, gptq(4, 8, "gptq_v2")},
      one_less({"gptq of a row", kGptq, 4, 8, 16, 16, gptq(4, -1)}),
      one_less(in_an_order({"gptq in an order", kGptq, 4, 16, 24, 8, gptq(4, 8)})),
      one_less({"gptq, 8 bits", kGptq, 8, 12, 16, 4, gptq(8, 4), kBF16}),
      one_less({"gptq, 2 bits", kGptq, 2, 16, 32, 8, gptq(2, 8), kF32}),
      one_less({"gptq, a last group", kGptq, 4, 8, 24, 16, gptq(4, 16)}),
      {"awq", kAwq, 4, 16, 12, 4, awq},
      {"awq in bfloat16", kAwq, 4, 24, 8, 4, awq, kBF16},
      {"packed", kPacked, 4, 5, 24, 8, packed_groups(4, 8), kBF16, false},
      {"packed, odd", kPacked, 4, 3, 13, 8, packed_groups(4, 8), kBF16, false},
      {"packed, zeros", kPacked, 4, 11, 16, 8, packed_groups(4, 8, false), kBF16},
      {"packed, old zeros", kPacked, 4, 11, 16, 8, packed_groups(4, 8, false), kF16, true, true},
      in_an_order({"packed, order", kPacked, 4, 5, 24, 8, packed_groups(4, 8), kF32, false}),
      {"packed, rows of 8 bits", kPacked, 8, 7, 10, 10, rows, kBF16, false},
      {"packed, groups of 8 bits", kPacked, 8, 7, 12, 4, packed_groups(8, 4, false), kF16},
  };
}

// Every range: those that begin and end inside rows, words and groups among them.
TEST(IntValues, EveryRangeIsCodeLessZeroTimesScale) {
  for (const Stored& stored : all_kinds()) {
    const IntFolder folder(stored);
    const auto weight = find_int_weight(folder.model(), "a.weight");
    ASSERT_TRUE(weight.has_value()) << stored.name;
    EXPECT_THAT(weight->dims(), ElementsAre(stored.rows, stored.columns)) << stored.name;
    EXPECT_EQ(weight->dtype(), stored.type) << stored.name;
    EXPECT_EQ(weight->parts().size(), folder.model().names().size()) << stored.name;
    EXPECT_THAT(names_of_copy(folder.model()), ElementsAre("a.weight")) << stored.name;
    const IntValues values(folder.model(), *weight);
    const int64_t numel = stored.rows * stored.columns;
    for (int64_t begin = 0; begin < numel; ++begin) {
      std::vector<float> out(static_cast<size_t>(numel - begin));
      values.read(begin, out);
      for (int64_t i = begin; i < numel; ++i) {
        ASSERT_EQ(out[static_cast<size_t>(i - begin)], folder.expected(i))
            << stored.name << " " << begin << " " << i;
      }
    }
  }
}

float decoded(const IntCodes& codes, const IntWeight& weight, std::span<const uint8_t> row,
              int64_t index) {
  const int64_t column = index % weight.columns, middle = weight.middle();
  const std::vector<int32_t> order = codes.order();
  const int64_t group = order.empty() ? column / weight.group : order[static_cast<size_t>(column)];
  const auto place = static_cast<size_t>(index / weight.columns * weight.groups + group);
  const auto byte = static_cast<size_t>(column * weight.bits / 8);
  const int64_t code = weight.bits == 8 ? row[byte] : (row[byte] >> (4 * (column % 2))) & 15;
  const std::vector<int8_t> zeros = codes.zeros();
  const int64_t above = code - middle - (zeros.empty() ? 0 : zeros[place]);
  const std::vector<std::byte> scales = codes.scales();
  const float scale = element_at(scales.data() + place * size_of(weight.dtype()), weight.dtype());
  return static_cast<float>(above) * scale;
}

// Every range of rows, from every layout.
TEST(IntCodes, RowsInOneOrder) {
  for (const Stored& stored : all_kinds()) {
    if (stored.bits == 2) continue;
    const IntFolder folder(stored);
    const IntWeight weight = find_int_weight(folder.model(), "a.weight").value();
    const IntCodes codes(folder.model(), weight);
    EXPECT_EQ(codes.row_bytes(), (stored.columns * stored.bits + 7) / 8) << stored.name;
    EXPECT_EQ(codes.zeros().empty(), !stored.has_zeros) << stored.name;
    EXPECT_EQ(codes.order().empty(), !stored.has_order) << stored.name;
    const auto bytes = static_cast<size_t>(codes.row_bytes());
    for (int64_t first = 0; first < stored.rows; ++first) {
      std::vector<uint8_t> rows(static_cast<size_t>(stored.rows - first) * bytes, 0xff);
      codes.read_rows(first, rows);
      for (int64_t i = first * stored.columns; i < stored.rows * stored.columns; ++i) {
        const std::span<const uint8_t> row =
            std::span(rows).subspan(static_cast<size_t>(i / stored.columns - first) * bytes, bytes);
        ASSERT_EQ(folder.rounded(decoded(codes, weight, row, i)), folder.expected(i))
            << stored.name << " " << first << " " << i;
      }
    }
  }
}

TEST(IntCodes, OfTwoBitsThereAreNone) {
  const IntFolder folder(one_less({"2 bits", IntLayout::kGptq, 2, 16, 32, 8, gptq(2, 8)}));
  const IntWeight weight = find_int_weight(folder.model(), "a.weight").value();
  EXPECT_THROW(IntCodes(folder.model(), weight), InternalError);
}

// Another number of scales, or bits, than config.json says.
TEST(IntWeight, WhatDoesNotFitIsRefused) {
  const std::vector<Stored> all = {
      {"groups", IntLayout::kGptq, 4, 16, 24, 8, gptq(4, 16)},
      {"bits", IntLayout::kGptq, 4, 16, 24, 8, gptq(8, 8)},
      {"rows", IntLayout::kAwq, 4, 16, 12, 4, R"({"quant_method": "awq", "group_size": -1})"},
      {"no zeros", IntLayout::kCompressed, 4, 5, 24, 8, packed_groups(4, 8, false), DType::kBF16,
       false},
      {"packed bits", IntLayout::kCompressed, 4, 5, 24, 8, packed_groups(8, 8), DType::kBF16,
       false},
  };
  for (const Stored& stored : all) {
    const IntFolder folder(stored);
    EXPECT_THROW((void)find_int_weight(folder.model(), "a.weight"), FormatError) << stored.name;
    EXPECT_FALSE(find_readable_ints(folder.model(), "a.weight").has_value()) << stored.name;
    EXPECT_TRUE(int_weights(folder.model()).empty()) << stored.name;
  }
}

TEST(IntWeight, SeveralGroupsOfLayers) {
  const std::string entry =
      R"({"quant_method": "gptq", "bits": 4, "group_size": 8, "dynamic": {"+:a": {"bits": 8}}})";
  const IntFolder folder(one_less({"dynamic", IntLayout::kGptq, 8, 16, 24, 8, entry}));
  EXPECT_EQ(find_int_weight(folder.model(), "a.weight").value().bits, 8);
}

}  // namespace
}  // namespace strata::hf
