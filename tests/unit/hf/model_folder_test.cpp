// Oracle: folders made by hand, whole ones and every way in which one can be broken.
#include "strata/hf/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"

namespace strata::hf {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file with one-byte tensors of the given names; each holds the first letter of the file's name.
void put_weights(const TemporaryFolder& folder, const std::string& file,
                 const std::vector<std::string>& names) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) specs.push_back({name, DType::kU8, {1}});
  SafetensorsWriter writer(folder / file, specs);
  const auto value = static_cast<std::byte>(file[0]);
  for (const std::string& name : names) writer.write(name, {&value, 1});
  writer.finish();
}

void put_index(const TemporaryFolder& folder, const std::string& weight_map) {
  folder.put("config.json", R"({"model_type": "llama"})");
  folder.put("model.safetensors.index.json",
             R"({"metadata": {"total_size": 3}, "weight_map": )" + weight_map + "}");
}

template <typename ErrorType>
std::string error_of(const TemporaryFolder& folder) {
  return message_of<ErrorType>([&] { ModelFolder model(folder.path()); });
}

TEST(ModelFolder, OpensASingleFile) {
  const TemporaryFolder folder;
  folder.put("config.json", R"({"model_type": "llama"})");
  put_weights(folder, "model.safetensors", {"b", "a"});
  const ModelFolder model(folder.path());
  EXPECT_EQ(model.config()["model_type"], "llama");
  EXPECT_FALSE(model.is_adapter());
  EXPECT_THAT(model.names(), ElementsAre("a", "b"));
  EXPECT_EQ(model.bytes(*model.find("a"))[0], std::byte{'m'});
  EXPECT_EQ(model.find("c"), nullptr);
  EXPECT_EQ(model.path(), folder.path());
}

TEST(ModelFolder, OpensShards) {
  const TemporaryFolder folder;
  put_index(folder, R"({"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"})");
  put_weights(folder, "1.safetensors", {"a", "c"});
  put_weights(folder, "2.safetensors", {"b"});
  const ModelFolder model(folder.path());
  EXPECT_THAT(model.names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(model.bytes(*model.find("b"))[0], std::byte{'2'});
  EXPECT_EQ(model.bytes(*model.find("c"))[0], std::byte{'1'});
  EXPECT_EQ(model.file_of(*model.find("b")).path().filename(), "2.safetensors");
  EXPECT_THROW(model.bytes(TensorInfo{"b", DType::kU8, {1}, 0, 1}), InternalError);
}

TEST(ModelFolder, OpensAdapters) {
  const TemporaryFolder folder;
  folder.put("adapter_config.json", R"({"peft_type": "LORA"})");
  put_weights(folder, "adapter_model.safetensors", {"base_model.model.q.lora_A.weight"});
  const ModelFolder model(folder.path());
  EXPECT_TRUE(model.is_adapter());
  EXPECT_EQ(model.config()["peft_type"], "LORA");
  EXPECT_EQ(model.names().size(), 1u);
}

TEST(ModelFolder, MissingFiles) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of<IoError>(folder), HasSubstr("config.json: found no such file"));
  folder.put("config.json", "{}");
  EXPECT_THAT(error_of<IoError>(folder),
              HasSubstr("found neither model.safetensors nor model.safetensors.index.json"));
  folder.put("model-00002-of-00002.safetensors", "");
  EXPECT_THAT(
      error_of<IoError>(folder),
      HasSubstr("found model-00002-of-00002.safetensors without model.safetensors.index.json"));
  folder.put("pytorch_model.bin", "");
  EXPECT_THAT(error_of<IoError>(folder),
              HasSubstr("found pytorch_model.bin, expected safetensors"));
  EXPECT_THAT(message_of<IoError>([&] { ModelFolder model(folder / "none"); }),
              HasSubstr("none: found nothing, expected a folder with config.json"));
  const TemporaryFolder adapter;
  adapter.put("adapter_config.json", "{}");
  EXPECT_THAT(error_of<IoError>(adapter), HasSubstr("found no adapter_model.safetensors"));
}

TEST(ModelFolder, BrokenConfig) {
  const TemporaryFolder folder;
  folder.put("config.json", "{\"a\": }");
  EXPECT_THAT(error_of<FormatError>(folder), HasSubstr("config.json:1:7: found '}'"));
  folder.put("config.json", "[]");
  EXPECT_THAT(error_of<FormatError>(folder), HasSubstr("config.json: found array"));
}

TEST(ModelFolder, BrokenIndex) {
  const TemporaryFolder folder;
  put_weights(folder, "1.safetensors", {"a", "c"});
  put_weights(folder, "2.safetensors", {"b"});
  put_index(folder, R"({"a": "1.safetensors", "b": "3.safetensors"})");
  EXPECT_THAT(error_of<IoError>(folder),
              HasSubstr("index.json: found no file 3.safetensors, expected it for tensor \"b\""));
  put_index(folder, R"({"a": "1.safetensors", "d": "2.safetensors"})");
  EXPECT_THAT(error_of<FormatError>(folder),
              HasSubstr("found tensor \"d\" in no file, expected it in 2.safetensors"));
  put_index(folder, R"({"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"})");
  EXPECT_THAT(error_of<FormatError>(folder),
              HasSubstr("found tensor \"b\" in 2.safetensors, expected it in 1.safetensors"));
  put_weights(folder, "2.safetensors", {"a", "b"});
  put_index(folder, R"({"a": "1.safetensors", "b": "2.safetensors"})");
  EXPECT_THAT(
      error_of<FormatError>(folder),
      HasSubstr(
          "2.safetensors: found tensor \"a\", which is also in 1.safetensors, expected it in"));
  for (const char* file : {"\"../x\"", "\"/etc/passwd\"", "\"..\"", "\"\"", "1"}) {
    put_index(folder, fmt::format(R"({{"a": {}}})", file));
    EXPECT_THAT(error_of<FormatError>(folder),
                HasSubstr("tensor \"a\": found the file " + std::string(file)));
  }
  put_index(folder, "[]");
  EXPECT_THAT(error_of<FormatError>(folder), HasSubstr("found no weight_map"));
}

}  // namespace
}  // namespace strata::hf
