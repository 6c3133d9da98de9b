// Oracle: the golden byte order of the reference writer, and round trips through the reader.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <array>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/hf/formats/safetensors.h"

namespace strata::hf {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;
using ::testing::HasSubstr;

std::vector<std::byte> pattern(size_t bytes, int seed) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>((i * 7 + 13 * seed) & 0xff);
  return data;
}

TEST(SafetensorsWriter, LaysOutAsTheReference) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "m", {{"a", DType::kU8, {3}},
                                          {"b", DType::kI64, {1}},
                                          {"e", DType::kF32, {0, 4}},
                                          {"m", DType::kBF16, {2}},
                                          {"s", DType::kF32, {}},
                                          {"z", DType::kF32, {2}}});
  for (const TensorInfo& info : writer.tensors())
    writer.write(info.name, pattern(info.size_bytes(), 1));
  writer.finish();
  const std::string bytes = read_file(folder / "m");
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("e":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]},)"
      R"("s":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
      R"("z":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},)"
      R"("m":{"dtype":"BF16","shape":[2],"data_offsets":[20,24]},)"
      R"("a":{"dtype":"U8","shape":[3],"data_offsets":[24,27]}})";
  EXPECT_EQ(bytes.substr(8, header.size()), header);
  const size_t padded = (header.size() + 7) / 8 * 8;
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]) + 256 * static_cast<unsigned char>(bytes[1]),
            static_cast<int>(padded));
  EXPECT_EQ(bytes.substr(8 + header.size(), padded - header.size()),
            std::string(padded - header.size(), ' '));
  EXPECT_EQ(bytes.size(), 8 + padded + 27);
}

TEST(SafetensorsWriter, TakesPiecesInAnyOrder) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "m",
                           {{"x", DType::kF32, {25}}, {"y \"\n\xc3\xa9", DType::kI8, {3}}},
                           {{"k\"ey", "v\\al"}, {"format", "pt"}});
  const std::vector<std::byte> x = pattern(100, 1);
  const std::vector<std::byte> y = pattern(3, 2);
  const std::span<const std::byte> all(x);
  writer.write("y \"\n\xc3\xa9", y);
  for (const auto& [begin, end] : {std::pair{90, 100}, {0, 10}, {50, 90}, {5, 30}, {30, 50}}) {
    writer.write("x", all.subspan(begin, end - begin), begin);
  }
  writer.finish();
  const SafetensorsFile file(folder / "m");
  EXPECT_THAT(file.bytes(*file.find("x")), ::testing::ElementsAreArray(x));
  EXPECT_THAT(file.bytes(*file.find("y \"\n\xc3\xa9")), ::testing::ElementsAreArray(y));
  EXPECT_EQ(file.metadata().at("k\"ey"), "v\\al");
}

TEST(SafetensorsWriter, RefusesToFinishWithHoles) {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "m", {{"x", DType::kU8, {10}}});
    const auto data = pattern(10, 1);
    const std::span<const std::byte> all(data);
    writer.write("x", all.first(4));
    writer.write("x", all.first(3), 7);
    EXPECT_EQ(message_of<InternalError>([&] { writer.finish(); }),
              (folder / "m").string() +
                  ": tensor \"x\": found 7 bytes written, expected 10 before finish");
    EXPECT_THROW(writer.write("x", all, 1), InternalError);
    EXPECT_THROW(writer.write("y", all), InternalError);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "m"));
}

TEST(SafetensorsWriter, RefusesBadSpecs) {
  const TemporaryFolder folder;
  const auto create = [&](std::vector<TensorSpec> specs) {
    SafetensorsWriter writer(folder / "m", std::move(specs));
  };
  EXPECT_THROW(create({{"x", DType::kU8, {1}}, {"x", DType::kF32, {1}}}), InternalError);
  EXPECT_THROW(create({{"x", DType::kU8, {-1}}}), InternalError);
  EXPECT_THROW(create({{"__metadata__", DType::kU8, {1}}}), InternalError);
  EXPECT_THROW(create({{"x", DType::kF64, {int64_t{1} << 61}}}), InternalError);
  EXPECT_FALSE(std::filesystem::exists(folder / "m"));
}

TEST(SafetensorsWriter, AFullDiskLeavesNoFile) {
  const TemporaryFolder folder;
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  struct rlimit limited = before;
  limited.rlim_cur = 4096;
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &limited);
  const std::string message = message_of<IoError>([&] {
    SafetensorsWriter writer(folder / "m", {{"x", DType::kF32, {2500}}});
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr((folder / "m").string() + ": found file too large with "));
  EXPECT_THAT(message, HasSubstr("expected room for 10104 bytes"));
  EXPECT_FALSE(std::filesystem::exists(folder / "m"));
}

TEST(SafetensorsWriter, StreamedAndSharedFilesHoldTheSameBytes) {
  const TemporaryFolder folder;
  const std::vector<TensorSpec> specs{{"a", DType::kF32, {3 << 20}}, {"b", DType::kF32, {12345}}};
  std::vector<float> values(3 << 20);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto all = std::as_bytes(std::span(values));
  const auto write = [&](SafetensorsWriter& writer) {
    writer.write("a", all.first(5'000'000));
    writer.write("a", all.subspan(5'000'000), 5'000'000);
    writer.write("b", all.first(12345 * 4));
    writer.finish();
  };
  SafetensorsWriter plain(folder / "plain", specs);
  write(plain);
  SafetensorsWriter streamed(folder / "streamed", specs);
  streamed.stream();
  write(streamed);
  EXPECT_TRUE(read_file(folder / "streamed") == read_file(folder / "plain"));
  // Two writers of one file, each its half.
  SafetensorsWriter::create_shared(folder / "shared", specs, {{"format", "pt"}});
  {
    const auto first = SafetensorsWriter::join(folder / "shared");
    const auto second = SafetensorsWriter::join(folder / "shared");
    first->stream();
    second->stream();
    second->write("a", all.subspan(5'000'000), 5'000'000);
    first->write("a", all.first(5'000'000));
    second->write("b", all.first(12345 * 4));
    first->finish();
    second->finish();
  }
  EXPECT_TRUE(read_file(folder / "shared") == read_file(folder / "plain"));
  SafetensorsWriter::join(folder / "shared").reset();  // leaves the file
  EXPECT_TRUE(std::filesystem::exists(folder / "shared"));
}

TEST(SafetensorsWriter, UnwritableFolder) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<IoError>([&] { SafetensorsWriter writer(folder / "none/m", {}); }),
              HasSubstr("found no such file or directory when creating it"));
}

}  // namespace
}  // namespace strata::hf
