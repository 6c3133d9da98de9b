// Oracle: round trip, and bytes broken by hand. What torch itself reads and writes is compared in
// tests/parity/test_convert.py.
#include "strata/hf/formats/torch_file.h"

#include <fcntl.h>

#include <cstring>

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/descriptor.h"
#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::hf {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// {"w": [2, 3] of F32, "n": {"i": 7, "x": 0.5, "none": None}} at `begin` of a file.
std::string saved(uint64_t begin = 0) {
  TemporaryFolder folder;
  const Descriptor file(::open((folder / "f").c_str(), O_CREAT | O_WRONLY, 0666));
  const PyValue root{PyItems{{"w", {PyTensor{0}}},
                             {"n", {PyItems{{"i", {int64_t{7}}}, {"x", {0.5}}, {"none", {}}}}}}};
  TorchFileWriter writer(file.get(), begin, "f", root, {{DType::kF32, {2, 3}}});
  const float values[6] = {0, 1, 2, 3, 4, 5};
  writer.write(std::as_bytes(std::span(values)));
  const uint64_t end = writer.finish();
  EXPECT_EQ(end, std::filesystem::file_size(folder / "f"));
  return read_file(folder / "f").substr(begin);
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST(TorchFile, RoundTrip) {
  const std::string text = saved();
  const TorchFile file(bytes_of(text), "f");
  ASSERT_EQ(file.tensors().size(), 1U);
  EXPECT_EQ(file.tensors()[0].path, std::vector<std::string>{"w"});
  EXPECT_EQ(file.tensors()[0].shape, (std::vector<int64_t>{2, 3}));
  float values[6];
  file.read(file.tensors()[0], std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values[5], 5);
  ASSERT_EQ(file.scalars().size(), 3U);
  EXPECT_EQ(file.scalars()[0].number, 7);
  EXPECT_EQ(file.scalars()[1].number, 0.5);
  EXPECT_FALSE(file.scalars()[2].number);
  file.verify();
  EXPECT_EQ(saved(1261), text) << "an archive does not depend on where in a file it lies";
}

TEST(TorchFile, EveryTruncationIsAnError) {
  const std::string text = saved();
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_THROW(TorchFile(bytes_of(text).first(size), "f"), FormatError) << size;
  }
}

TEST(TorchFile, AFlippedByteOfDataIsFound) {
  std::string text = saved();
  const float two = 2;
  const size_t at = text.find(std::string(reinterpret_cast<const char*>(&two), 4));
  text[at] = static_cast<char>(text[at] ^ 1);
  const TorchFile file(bytes_of(text), "f");
  EXPECT_THROW(file.verify(), FormatError);
}

TEST(TorchFile, ViewsStayInTheirStorage) {
  const std::string shape("(K\x02K\x03t", 6);
  for (const std::string& wrong :
       {std::string("(K\x02K\x04t", 6), std::string("(K\xffK\x03t", 6)}) {
    const std::string text = replaced(saved(), shape, wrong);
    const std::string message =
        message_of<FormatError>([&] { TorchFile file(bytes_of(text), "f"); });
    EXPECT_NE(message.find("expected a view inside its storage"), std::string::npos) << message;
  }
}

TEST(TorchFile, GlobalsOutsideTheListAreRefusedByName) {
  const std::string text = replaced(saved(), "ctorch._utils\n_rebuild_tensor_v2\n",
                                    "cposix_system\nsystem_1234567890_\n");
  const std::string message = message_of<FormatError>([&] { TorchFile file(bytes_of(text), "f"); });
  EXPECT_NE(message.find("the global \"posix_system system_1234567890_\""), std::string::npos)
      << message;
  EXPECT_NE(message.find("nothing of it was run"), std::string::npos) << message;
}

TEST(Pickle, ListsThatContainThemselvesEnd) {
  // A list of two references to a list of two references to ...
  std::string text = "\x80\x02]";
  for (int i = 0; i < 30; ++i)
    text += "q" + std::string(1, static_cast<char>(i)) + "](h" +
            std::string(1, static_cast<char>(i)) + "h" + std::string(1, static_cast<char>(i)) + "e";
  const Pickle pickle =
      parse_pickle(bytes_of(text + "."), "f", [](std::string_view) { return true; });
  EXPECT_EQ(pickle.root().items.size(), 2U);
}

}  // namespace
}  // namespace strata::hf
