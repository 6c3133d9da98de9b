// Oracle: bytes written down from the format's page, byte by byte; every rule that a file can
// break.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/hf/formats/gguf.h"

namespace strata::hf {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;
using ::testing::HasSubstr;

// Little-endian, as many bytes as `size`.
std::string number(uint64_t value, size_t size) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

std::string text(const std::string& content) { return number(content.size(), 8) + content; }

std::string padded(std::string bytes) {
  bytes.resize((bytes.size() + 31) / 32 * 32, '\0');
  return bytes;
}

std::string start(uint64_t num_tensors, uint64_t num_keys) {
  return "GGUF" + number(3, 4) + number(num_tensors, 8) + number(num_keys, 8);
}

// A matrix [2, 3] in fp32, at the beginning of the data.
std::string matrix() {
  return text("m") + number(2, 4) + number(3, 8) + number(2, 8) + number(0, 4) + number(0, 8);
}

std::span<const std::byte> bytes_of(const std::string& bytes) {
  return std::as_bytes(std::span(bytes));
}

std::string refusal(const std::string& bytes) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "f.gguf", bytes);
  return message_of<FormatError>([&] { GgufFile file(folder / "f.gguf"); });
}

TEST(Gguf, WritesWhatTheFormatSays) {
  const TemporaryFolder folder;
  const GgufMetadata metadata = {{"a", std::string("x")},
                                 {"b", uint32_t{7}},
                                 {"c", 0.5F},
                                 {"d", true},
                                 {"e", GgufArray(std::vector<std::string>{"p", ""})},
                                 {"f", GgufArray(std::vector<int32_t>{-1, 2})},
                                 {"g", GgufArray(std::vector<bool>{false, true})}};
  GgufWriter writer(folder / "f", metadata,
                    {{"m", GgufType::kF32, {2, 3}}, {"q", GgufType::kQ8_0, {32}}});
  const std::string values(24, 'v'), codes(34, 'q');
  writer.append("m", bytes_of(values.substr(0, 20)));
  writer.append("m", bytes_of(values.substr(0, 4)));
  writer.append("q", bytes_of(codes));
  writer.finish();
  const std::string header =
      start(2, 7) + text("a") + number(8, 4) + text("x") + text("b") + number(4, 4) + number(7, 4) +
      text("c") + number(6, 4) + number(0x3f000000, 4) + text("d") + number(7, 4) + number(1, 1) +
      text("e") + number(9, 4) + number(8, 4) + number(2, 8) + text("p") + text("") + text("f") +
      number(9, 4) + number(5, 4) + number(2, 8) + number(0xffffffff, 4) + number(2, 4) +
      text("g") + number(9, 4) + number(7, 4) + number(2, 8) + number(0x100, 2) + matrix() +
      text("q") + number(1, 4) + number(32, 8) + number(8, 4) + number(32, 8);
  EXPECT_EQ(read_file(folder / "f"), padded(header) + padded(values) + padded(codes));
  const GgufFile file(folder / "f");
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors()[0].tensor, (GgufTensor{"m", GgufType::kF32, {2, 3}}));
  EXPECT_THAT(file.bytes(file.tensors()[1]), ::testing::ElementsAreArray(bytes_of(codes)));
}

TEST(Gguf, LeavesNoFileThatIsNotComplete) {
  const TemporaryFolder folder;
  const std::string half(4, 'v');
  {
    GgufWriter writer(folder / "f", {}, {{"m", GgufType::kF32, {2}}, {"n", GgufType::kF32, {1}}});
    EXPECT_THROW(writer.append("n", bytes_of(half)), InternalError);
    writer.append("m", bytes_of(half));
    EXPECT_THAT(message_of<InternalError>([&] { writer.finish(); }), HasSubstr("4 bytes written"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "f"));
}

TEST(Gguf, WritesTensorsOfNothing) {
  const TemporaryFolder folder;
  GgufWriter writer(folder / "f", {}, {{"m", GgufType::kF32, {0}}, {"n", GgufType::kF32, {0, 2}}});
  writer.finish();
  EXPECT_EQ(GgufFile(folder / "f").tensors()[1].size_bytes, 0U);
}

TEST(Gguf, RefusesBrokenHeaders) {
  const std::string whole = padded(start(1, 0) + matrix()) + std::string(24, 'v');
  EXPECT_EQ(refusal(whole), "");
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_NE(refusal(whole.substr(0, size)), "");
  EXPECT_THAT(refusal("GGML" + whole.substr(4)), HasSubstr("found no GGUF at its beginning"));
  EXPECT_THAT(refusal("GGUF" + number(1, 4) + whole.substr(8)), HasSubstr("found version 1"));
  EXPECT_THAT(refusal("GGUF" + number(0x03000000, 4) + whole.substr(8)),
              HasSubstr("little-endian"));
  EXPECT_THAT(refusal(start(uint64_t{1} << 60, 0)), HasSubstr("tensors, expected at most"));
  EXPECT_THAT(refusal(start(0, uint64_t{1} << 60)), HasSubstr("keys, expected at most"));
  EXPECT_THAT(refusal(start(0, 1) + number(uint64_t{1} << 63, 8) + "abcde"), HasSubstr("cut off"));
  const std::string key = start(0, 1) + text("k");
  EXPECT_THAT(refusal(key + number(13, 4) + number(0, 8)), HasSubstr("value type 13"));
  EXPECT_THAT(refusal(key + number(9, 4) + number(9, 4) + number(0, 8)), HasSubstr("value type 9"));
  EXPECT_THAT(refusal(key + number(9, 4) + number(5, 4) + number(uint64_t{1} << 62, 8)),
              HasSubstr("array elements"));
  const std::string pair = text("k") + number(7, 4) + number(1, 1);
  EXPECT_THAT(refusal(start(0, 2) + pair + pair), HasSubstr("\"k\" twice"));
  const std::string alignment = text("general.alignment") + number(4, 4) + number(24, 4);
  EXPECT_THAT(refusal(start(0, 1) + alignment), HasSubstr("power of two"));
}

// A file with a hole is as long as its end says, and takes no room: what a header says must fit
// what one can hold.
TEST(Gguf, RefusesHeadersLongerThanMemory) {
  const auto with_hole = [](const std::string& begin) {
    const TemporaryFolder folder;
    write_file_atomically(folder / "f.gguf", begin);
    std::filesystem::resize_file(folder / "f.gguf", uint64_t{1} << 41);
    return message_of<FormatError>([&] { GgufFile file(folder / "f.gguf"); });
  };
  const std::string key = start(0, 1) + text("k");
  constexpr uint64_t kHuge = uint64_t{1} << 40;
  EXPECT_THAT(with_hole(key + number(8, 4) + number(kHuge, 8)),
              HasSubstr("found 1099511627776 bytes of a header after byte 45, expected at most"));
  EXPECT_THAT(with_hole(start(0, 1) + number(kHuge, 8)), HasSubstr("bytes of a header"));
  EXPECT_THAT(with_hole(key + number(9, 4) + number(8, 4) + number(kHuge >> 4, 8)),
              HasSubstr("found 68719476736 array elements"));
  EXPECT_THAT(with_hole(start(kHuge >> 5, 0)), HasSubstr("found 34359738368 tensors"));
  EXPECT_THAT(with_hole(start(0, kHuge >> 5)), HasSubstr("found 34359738368 keys"));
}

TEST(Gguf, NamesWhatStandsThereInstead) {
  const std::string rest(40, '\0');
  EXPECT_THAT(refusal("tjgg" + rest),
              HasSubstr("from before GGUF), expected a GGUF file; convert"));
  EXPECT_THAT(refusal("PK\x03\x04" + rest), HasSubstr("the bytes 50 4b 03 04 (a zip archive)"));
}

TEST(Gguf, RefusesBrokenTensors) {
  const auto with = [](uint64_t dimensions, const std::string& sizes, uint64_t type, uint64_t at) {
    return refusal(padded(start(1, 0) + text("m") + number(dimensions, 4) + sizes +
                          number(type, 4) + number(at, 8)) +
                   std::string(64, 'v'));
  };
  EXPECT_EQ(with(1, number(8, 8), 0, 32), "");
  EXPECT_THAT(with(5, number(8, 8), 0, 0), HasSubstr("5 dimensions"));
  EXPECT_THAT(with(1, number(17, 8), 0, 0), HasSubstr("found 68 bytes at 0"));
  EXPECT_THAT(with(1, number(8, 8), 0, 16), HasSubstr("aligned to 32"));
  EXPECT_THAT(with(1, number(8, 8), 0, uint64_t{1} << 63), HasSubstr("aligned to 32 within"));
  EXPECT_THAT(with(1, number(33, 8), 8, 0), HasSubstr("rows of 33, expected a multiple of 32"));
  EXPECT_THAT(with(1, number(8, 8), 5, 0), HasSubstr("a type that is not known"));
  EXPECT_THAT(with(2, number(uint64_t{1} << 40, 8) + number(uint64_t{1} << 40, 8), 0, 0),
              HasSubstr("too many elements"));
  EXPECT_THAT(with(1, number(uint64_t{1} << 63, 8), 0, 0), HasSubstr("too many elements"));
}

TEST(Gguf, RoundsCodesAwayFromZero) {
  std::vector<float> values(32, 0);
  values[0] = -127;  // the scale is 1
  values[1] = 0.5F, values[2] = -0.5F, values[3] = 1.5F, values[4] = 2.4999F, values[5] = 126.5F;
  std::vector<std::byte> bytes(34);
  encode_gguf(GgufType::kQ8_0, values, bytes);
  uint16_t scale = 0;
  std::memcpy(&scale, bytes.data(), sizeof(scale));
  EXPECT_EQ(scale, 0x3c00);
  const auto code = [&](size_t i) { return static_cast<int>(static_cast<int8_t>(bytes[2 + i])); };
  EXPECT_THAT((std::vector<int>{code(0), code(1), code(2), code(3), code(4), code(5), code(6)}),
              ::testing::ElementsAre(-127, 1, -1, 2, 2, 127, 0));
}

}  // namespace
}  // namespace strata::hf
