// Oracle: what must not count as saved leaves nothing under the final names.
#include "strata/checkpoint/export_files.h"

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"

namespace strata::checkpoint {
namespace {

using strata::testing::message_of;
using strata::testing::TemporaryFolder;

const std::vector<float> kZeros(6, 0.0f);
const std::vector<float> kOnes(6, 1.0f);

struct Row {
  const char* name;
  std::vector<int64_t> shape;
  Trained trained;
  bool is_refused;
  const char* trained_beside = "norm";  // with other values and the same shape
};

TEST(ExportFiles, AMatrixOfZerosIsNoResultOfTraining) {
  constexpr Trained kYes = Trained::kYes, kNotYet = Trained::kNotYet;
  for (const Row& row :
       {Row{"model.embed_tokens.weight", {2, 3}, kYes, true},
        Row{"model.embed_tokens.weight", {2, 3}, kNotYet, true},
        Row{"model.embed_tokens.weight", {2, 3}, Trained::kUnknown, false},
        Row{"q_proj.lora_A.weight", {3, 2}, kYes, true},
        Row{"q_proj.lora_A.weight", {3, 2}, kNotYet, true},
        // What starts as zeros may be zeros as long as nothing was learnt, a warm-up's first step
        // included.
        Row{"q_proj.lora_B.weight", {3, 2}, kNotYet, false},
        Row{"q_proj.lora_B.weight", {3, 2}, kYes, true},
        Row{"embed_tokens.lora_embedding_A", {2, 3}, kNotYet, false},
        Row{"embed_tokens.lora_embedding_A", {2, 3}, kYes, true},
        Row{"embed_tokens.lora_embedding_B", {3, 2}, kNotYet, true},
        Row{"prompt_embeddings", {2, 3}, kNotYet, false},
        Row{"prompt_embeddings", {2, 3}, kYes, true},
        // No gradient may reach one of several.
        Row{"q_proj.lora_B.weight", {3, 2}, kYes, false, "v_proj.lora_B.weight"},
        Row{"q_proj.lora_A.weight", {3, 2}, kYes, true, "v_proj.lora_A.weight"},
        Row{"prompt_embeddings", {2, 3}, kYes, true, "v_proj.lora_A.weight"},
        Row{"token_type_embeddings.weight", {1, 6}, kYes, false},
        Row{"q_proj.ia3_l", {6, 1}, kYes, false}, Row{"q_proj.vera_lambda_b", {6}, kYes, false},
        Row{"norm.weight", {6}, kYes, false}}) {
    TemporaryFolder folder;
    const auto save = [&] {
      ExportFiles files(folder.path(), row.trained);
      files.add("model.safetensors", {{row.name, hf::DType::kF32, row.shape},
                                      {row.trained_beside, hf::DType::kF32, {2, 3}}});
      files.write(row.name, std::as_bytes(std::span(kZeros)));
      files.write(row.trained_beside, std::as_bytes(std::span(kOnes)));
      files.publish();
    };
    if (row.is_refused) {
      const std::string message = message_of<FormatError>(save);
      EXPECT_NE(message.find(row.name), std::string::npos) << message;
      EXPECT_NE(message.find("only zeros"), std::string::npos) << message;
    } else {
      save();
    }
    EXPECT_EQ(std::filesystem::is_empty(folder.path()), row.is_refused) << row.name;
  }
}

// A disk that answers that all is well and keeps other bytes.
class Forgetful : public FileSystem {
 public:
  explicit Forgetful(std::string_view lost) : lost_(lost) {}
  size_t write(int descriptor, std::span<const std::byte> data, uint64_t offset) override {
    std::string bytes(reinterpret_cast<const char*>(data.data()), data.size());
    if (const size_t at = bytes.find(lost_); at != std::string::npos) bytes[at] = '#';
    return FileSystem::write(descriptor, std::as_bytes(std::span(bytes)), offset);
  }

 private:
  std::string lost_;
};

TEST(ExportFiles, WhatTheDiskKeptOtherwiseDoesNotCount) {
  const float four = 4;
  const std::string of_value(reinterpret_cast<const char*>(&four), sizeof(four));
  for (const auto& [lost, found] : std::vector<std::pair<std::string, std::string>>{
           {of_value, "found other values in \"w\""},
           {"0123456789abcdef", "found other metadata"},
           {"\"r\": 8", "adapter_config.json: found other bytes"}}) {
    TemporaryFolder folder;
    Forgetful files(lost);
    const std::string message = message_of<IoError>([&] {
      ExportFiles exported(folder.path(), Trained::kYes, files);
      exported.add("adapter_model.safetensors", {{"w", hf::DType::kF32, {1}}},
                   {{"format", "pt"}, {"base_fingerprint", "0123456789abcdef"}});
      exported.add_text("adapter_config.json", "{\"r\": 8}");
      exported.write("w", std::as_bytes(std::span(&four, 1)));
      exported.publish();
    });
    EXPECT_NE(message.find(found), std::string::npos) << message;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

}  // namespace
}  // namespace strata::checkpoint
