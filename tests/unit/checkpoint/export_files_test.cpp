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
  bool of_training;
  bool is_refused;
};

TEST(ExportFiles, AMatrixOfZerosIsNoResultOfTraining) {
  for (const Row& row : {Row{"model.embed_tokens.weight", {2, 3}, true, true},
                         Row{"q_proj.lora_A.weight", {3, 2}, true, true},
                         Row{"q_proj.lora_B.weight", {3, 2}, true, false},
                         Row{"token_type_embeddings.weight", {1, 6}, true, false},
                         Row{"norm.weight", {6}, true, false},
                         Row{"model.embed_tokens.weight", {2, 3}, false, false}}) {
    TemporaryFolder folder;
    const auto save = [&] {
      ExportFiles files(folder.path(), row.of_training);
      files.add("model.safetensors",
                {{row.name, hf::DType::kF32, row.shape}, {"other", hf::DType::kF32, {6}}});
      files.write(row.name, std::as_bytes(std::span(kZeros)));
      files.write("other", std::as_bytes(std::span(kOnes)));
      files.publish();
    };
    if (row.is_refused) {
      const std::string message = message_of<IoError>(save);
      EXPECT_NE(message.find(row.name), std::string::npos) << message;
      EXPECT_NE(message.find("only zeros"), std::string::npos) << message;
    } else {
      save();
    }
    EXPECT_EQ(std::filesystem::is_empty(folder.path()), row.is_refused) << row.name;
  }
}

}  // namespace
}  // namespace strata::checkpoint
