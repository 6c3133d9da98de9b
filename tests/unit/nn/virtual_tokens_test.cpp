// Oracle: what ops/dropout.h asks of token keys: tokens of other keys have other masks, and a token
// has the same key wherever it is computed (I6).
#include "strata/nn/virtual_tokens.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

namespace strata::nn {
namespace {

constexpr int64_t kPrompt = 3;

// Of rows of data as data/collate.h numbers their tokens.
struct Document {
  int64_t first_key, tokens;
};

Batch batch_of(const std::vector<Document>& documents) {
  Batch batch;
  batch.offsets = {0};
  std::vector<at::Tensor> keys, positions;
  for (const auto& [first_key, tokens] : documents) {
    positions.push_back(at::arange(tokens, at::kLong));
    keys.push_back(positions.back() + first_key);
    batch.offsets.push_back(batch.offsets.back() + tokens);
  }
  batch.token_keys = at::cat(keys);
  batch.positions = at::cat(positions);
  batch.ids = at::zeros_like(batch.positions);
  batch.targets = at::zeros_like(batch.positions);
  batch.first_labels.assign(documents.size(), 0);
  return batch;
}

std::vector<int64_t> keys_with_prompt(const std::vector<Document>& documents) {
  const VirtualTokens tokens{
      VirtualTokens::Kind::kPrompt,
      std::make_shared<Parameter>("prompt", std::vector<int64_t>{kPrompt, 4}, at::kFloat)};
  const at::Tensor keys = with_virtual_tokens(batch_of(documents), tokens).token_keys;
  return {keys.const_data_ptr<int64_t>(), keys.const_data_ptr<int64_t>() + keys.numel()};
}

constexpr int64_t kRow = int64_t{1} << 24;
const std::vector<Document> kDocuments{{0, 5}, {kRow, 2}};
// Two documents of one packed row, of which the first is a single token, and a row far behind.
const std::vector<Document> kPacked{{7 * kRow, 1}, {7 * kRow + 1, 4}, {2'000'000'000 * kRow, 2}};

TEST(VirtualTokens, HaveKeysOfTheirOwn) {
  for (const std::vector<Document>& documents : {kDocuments, kPacked}) {
    const std::vector<int64_t> keys = keys_with_prompt(documents);
    EXPECT_EQ(std::set<int64_t>(keys.begin(), keys.end()).size(), keys.size());
    // Nor those of padding, of which there are fewer tokens than ranks.
    for (const int64_t key : keys) EXPECT_TRUE(key >= 0 || key < -1'000'000) << key;
  }
}

TEST(VirtualTokens, HaveTheSameKeysOnAnyRank) {
  std::vector<int64_t> keys;
  for (const Document& document : kDocuments) {
    const std::vector<int64_t> alone = keys_with_prompt({document});
    keys.insert(keys.end(), alone.begin(), alone.end());
  }
  EXPECT_EQ(keys, keys_with_prompt(kDocuments));
}

}  // namespace
}  // namespace strata::nn
