#include "strata/train/recipes/read_tokens.h"

#include "strata/base/error.h"

namespace strata::train {

std::vector<int64_t> last_tokens(const data::MicroBatch& batch, int64_t pad_id) {
  std::vector<int64_t> tokens;
  for (size_t d = 0; d + 1 < batch.offsets.size(); ++d) {
    int64_t token = batch.offsets[d + 1] - 1;
    while (token > batch.offsets[d] && batch.ids[static_cast<size_t>(token)] == pad_id) --token;
    tokens.push_back(token);
  }
  return tokens;
}

std::vector<int64_t> first_tokens(const data::MicroBatch& batch) {
  return {batch.offsets.begin(), batch.offsets.end() - 1};
}

int64_t require_pad_id(const text::Tokenizer& tokenizer) {
  if (const auto pad_id = tokenizer.pad_id()) return *pad_id;
  throw ConfigError(
      "pad_token: found none in the tokenizer and no end-of-sequence token, expected one: a text "
      "is "
      "judged by its last token that is no padding; pass --pad_token");
}

}  // namespace strata::train
