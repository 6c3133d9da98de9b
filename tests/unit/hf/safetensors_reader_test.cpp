// Oracle: an attack corpus of hand-made files, one for every rule of the format.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/hf/formats/safetensors.h"

namespace strata::hf {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string with_length(uint64_t length, const std::string& rest) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>((length >> (8 * i)) & 0xff);
  return bytes + rest;
}

std::string file_of(const std::string& header, size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, '\x01'));
}

TEST(SafetensorsFile, ReadsTensorsInOffsetOrder) {
  const TemporaryFolder folder;
  // Unaligned offsets, an unpadded header, unknown extra keys and empty tensors all pass.
  const auto path =
      folder.put("m.safetensors",
                 file_of(R"({"b":{"dtype":"F32","shape":[2,1],"data_offsets":[1,9],"extra":1},)"
                         R"("e":{"dtype":"F16","shape":[0,7],"data_offsets":[9,9]},)"
                         R"("s":{"dtype":"BF16","shape":[],"data_offsets":[9,11]},)"
                         R"("__metadata__":{"format":"pt"},)"
                         R"("a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})",
                         11));
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].name, "b");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.path(), path);
  const TensorInfo* b = file.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::kF32);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(b->numel(), 2);
  EXPECT_EQ(file.bytes(*b).size(), 8u);
  EXPECT_EQ(file.find("s")->numel(), 1);
  EXPECT_EQ(file.find("e")->numel(), 0);
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(SafetensorsFile, StaysValidWhenMoved) {
  const TemporaryFolder folder;
  const std::string header = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
  SafetensorsFile file(folder.put("m", file_of(header, 3)));
  const TensorInfo* info = file.find("a");
  const SafetensorsFile moved = std::move(file);
  EXPECT_EQ(moved.find("a"), info);
  EXPECT_EQ(moved.bytes(*info).size(), 3u);
}

TEST(SafetensorsFile, AcceptsNoTensors) {
  const TemporaryFolder folder;
  EXPECT_TRUE(SafetensorsFile(folder.put("m", file_of("{}", 0))).tensors().empty());
}

struct Attack {
  const char* name;
  std::string content;
  const char* message;  // behind "PATH: "
};

// One F32 tensor "a" with the given entries, in a file with `data_bytes` of data.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                size_t data_bytes) {
  return file_of(
      fmt::format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets),
      data_bytes);
}

std::vector<Attack> length_attacks() {
  return {
      {"empty", "", "found 0 bytes, expected at least the 8 bytes of the header length"},
      {"no_header", "\x02\x00", "found 1 bytes"},
      {"header_huge", with_length(100'000'001, "{}"), "found a header length of 100000001 bytes"},
      {"header_overflow", with_length(~0ull, "{}"),
       "found a header length of 18446744073709551615"},
      {"header_beyond_file", with_length(3, "{}"),
       "found a header length of 3 bytes in a file of 10"},
      {"header_empty", with_length(0, ""), "header: found no '{' at its start"},
      {"header_list", file_of("[]", 0), "header: found no '{' at its start"},
      {"header_space_first", file_of(" {}", 0), "header: found no '{' at its start"},
      {"header_not_json", file_of("{\"a\"}", 0), "header:1:5: found '}', expected ':'"},
      {"header_not_utf8", file_of("{\"\xff\":1}", 0), "header:1:3: found the byte 0xff"},
      {"header_deep", file_of("{\"a\":" + std::string(5000, '['), 0),
       "header:1:518: found more than"},
      {"header_garbage_behind", file_of("{}x", 0), "header:1:3: found 'x'"},
  };
}

std::vector<Attack> tensor_attacks() {
  const std::string two = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                          R"("b":{"dtype":"U8","shape":[4],"data_offsets":)";
  return {
      {"name_twice",
       file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
               R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
               0),
       "header:1:54: found the key \"a\" again"},
      {"not_an_object", file_of(R"({"a":7})", 0), "tensor \"a\": found 7, expected an object"},
      {"no_dtype", file_of(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1),
       "tensor \"a\": found no key \"dtype\""},
      {"no_shape", file_of(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1),
       "tensor \"a\": found no key \"shape\""},
      {"no_offsets", file_of(R"({"a":{"dtype":"U8","shape":[1]}})", 1),
       "tensor \"a\": found no key \"data_offsets\""},
      {"dtype_unknown", one("\"F31\"", "[1]", "[0,4]", 4), "tensor \"a\": dtype: found \"F31\""},
      {"dtype_lower", one("\"f32\"", "[1]", "[0,4]", 4), "tensor \"a\": dtype: found \"f32\""},
      {"dtype_number", one("32", "[1]", "[0,4]", 4), "tensor \"a\": dtype: found 32"},
      {"shape_negative", one("\"U8\"", "[-1]", "[0,1]", 1), "tensor \"a\": shape: found [-1]"},
      {"shape_float", one("\"U8\"", "[1.0]", "[0,1]", 1), "tensor \"a\": shape: found [1.0]"},
      {"shape_number", one("\"U8\"", "1", "[0,1]", 1), "tensor \"a\": shape: found 1"},
      {"shape_text", one("\"U8\"", "[\"1\"]", "[0,1]", 1), "tensor \"a\": shape: found [\"1\"]"},
      {"shape_over_63_bits", one("\"U8\"", "[9223372036854775808]", "[0,1]", 1),
       "tensor \"a\": shape: found [9223372036854775808]"},
      {"shape_product_overflow", one("\"F32\"", "[4294967296,4294967296]", "[0,0]", 0),
       "tensor \"a\": shape: found [4294967296, 4294967296] of F32, expected a size below 2^63"},
      {"shape_bytes_overflow", one("\"F64\"", "[2305843009213693952]", "[0,0]", 0),
       "tensor \"a\": shape: found [2305843009213693952] of F64"},
      {"size_small", one("\"F32\"", "[2]", "[0,4]", 4),
       "tensor \"a\": data_offsets: found 4 bytes, expected 8 for F32 [2]"},
      {"size_large", one("\"F32\"", "[2]", "[0,12]", 12),
       "tensor \"a\": data_offsets: found 12 bytes, expected 8 for F32 [2]"},
      {"offsets_three", one("\"U8\"", "[1]", "[0,1,1]", 1),
       "tensor \"a\": data_offsets: found [0, 1, 1], expected two byte positions"},
      {"offsets_negative", one("\"U8\"", "[1]", "[-1,0]", 1),
       "tensor \"a\": data_offsets: found [-1, 0]"},
      {"offsets_float", one("\"U8\"", "[1]", "[0,1e0]", 1),
       "tensor \"a\": data_offsets: found [0, 1.0]"},
      {"offsets_descending", one("\"U8\"", "[1]", "[1,0]", 1),
       "tensor \"a\": data_offsets: found [1, 0] with 1 bytes of data, expected an ascending pair"},
      {"offsets_beyond", one("\"U8\"", "[5]", "[0,5]", 4),
       "tensor \"a\": data_offsets: found [0, 5] with 4 bytes of data"},
      {"offsets_huge", one("\"U8\"", "[1]", "[18446744073709551615,18446744073709551615]", 1),
       "tensor \"a\": data_offsets: found [18446744073709551615, 18446744073709551615]"},
      {"gap_at_start", one("\"U8\"", "[1]", "[1,2]", 2),
       "tensor \"a\": data_offsets: found a start at 1, expected 0 where the tensor before it ends "
       "(there is a gap)"},
      {"gap", file_of(two + "[5,9]}}", 9),
       "tensor \"b\": data_offsets: found a start at 5, expected 4"},
      {"overlap", file_of(two + "[3,7]}}", 7),
       "tensor \"b\": data_offsets: found a start at 3, expected 4 where the tensor before it ends "
       "(they overlap)"},
      {"same_bytes", file_of(two + "[0,4]}}", 4),
       "tensor \"b\": data_offsets: found a start at 0, expected 4"},
      {"trailing_bytes", one("\"U8\"", "[4]", "[0,4]", 5), "found 5 bytes of data, expected 4"},
      {"data_without_tensors", file_of("{}", 1), "found 1 bytes of data, expected 0"},
      {"metadata_number", file_of(R"({"__metadata__":{"format":1}})", 0),
       "__metadata__: found 1 for the key \"format\", expected a string"},
      {"metadata_list", file_of(R"({"__metadata__":["pt"]})", 0), "__metadata__: found [\"pt\"]"},
      {"metadata_null", file_of(R"({"__metadata__":null})", 0), "__metadata__: found null"},
  };
}

TEST(SafetensorsFile, RefusesBrokenHeaders) {
  const TemporaryFolder folder;
  for (const auto& attacks : {length_attacks(), tensor_attacks()}) {
    for (const Attack& attack : attacks) {
      const auto path = folder.put(attack.name, attack.content);
      EXPECT_THAT(message_of<FormatError>([&] { SafetensorsFile file(path); }),
                  StartsWith(path.string() + ": " + attack.message))
          << attack.name;
    }
  }
}

TEST(SafetensorsFile, RefusesEveryTruncation) {
  const TemporaryFolder folder;
  const std::string whole = one("\"F32\"", "[3]", "[0,12]", 12);
  SafetensorsFile complete(folder.put("whole", whole));
  for (size_t length = 0; length < whole.size(); ++length) {
    const auto path = folder.put("cut", whole.substr(0, length));
    EXPECT_NE(message_of<FormatError>([&] { SafetensorsFile file(path); }), "") << length;
  }
}

TEST(SafetensorsFile, MissingFile) {
  EXPECT_THAT(message_of<IoError>([] { SafetensorsFile file("none.safetensors"); }),
              HasSubstr("none.safetensors: found no such file or directory"));
}

TEST(DType, NamesRoundTrip) {
  for (const char* name : {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16",
                           "I8", "U64", "U32", "U16", "U8", "BOOL"}) {
    EXPECT_EQ(name_of(parse_dtype(name)), name);
  }
  EXPECT_EQ(size_of(DType::kBF16), 2u);
  EXPECT_THROW(parse_dtype("float32"), FormatError);
}

}  // namespace
}  // namespace strata::hf
