// Oracle: the mask transformers' apply_chat_template makes of the same spans (char_to_token), and
// for borders without a token the span's own text.
#include "strata/data/rows/assistant_mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace strata::data {
namespace {

using ::testing::ElementsAre;
using Spans = std::vector<ByteSpan>;

std::vector<uint8_t> mask(const std::vector<text::Token>& tokens, const std::string& text,
                          const Spans& spans) {
  return mask_spans(tokens, text, spans);
}

TEST(MaskSpans, CoversTheTokensOfEachSpan) {
  const std::vector<text::Token> tokens = {{1, 0, 2}, {2, 2, 4}, {3, 4, 5}, {4, 5, 8}};
  EXPECT_THAT(mask(tokens, "aabbcddd", {{2, 5}}), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(mask(tokens, "aabbcddd", {{0, 2}, {5, 8}}), ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(mask(tokens, "aabbcddd", {{4, 4}}), ElementsAre(0, 0, 0, 0));
}

TEST(MaskSpans, IncludesTokensThatReachIntoTheSpan) {
  const std::vector<text::Token> tokens = {{1, 0, 3}, {2, 3, 6}, {3, 6, 8}};
  EXPECT_THAT(mask(tokens, "aaabbbcc", {{2, 4}}), ElementsAre(1, 1, 0));
}

// Tokens that hold parts of one character all cover it; the mask ends with the first of them.
TEST(MaskSpans, EndsAtTheFirstTokenOfTheLastCharacter) {
  const std::vector<text::Token> tokens = {{1, 0, 1}, {2, 1, 4}, {3, 1, 4}, {4, 1, 4}, {5, 4, 5}};
  const std::string text =
      "a\xe2\x82\xac"
      "b";
  EXPECT_THAT(mask(tokens, text, {{0, 4}}), ElementsAre(1, 1, 0, 0, 0));
  EXPECT_THAT(mask(tokens, text, {{0, 5}}), ElementsAre(1, 1, 1, 1, 1));
}

// Ranges that leave out white space: the border moves inwards instead of reaching the end of the
// text.
TEST(MaskSpans, MovesBordersWithoutTokenInwards) {
  const std::vector<text::Token> tokens = {{1, 1, 3}, {2, 4, 6}, {3, 7, 8}};
  EXPECT_THAT(mask(tokens, " aa bb c", {{3, 7}}), ElementsAre(0, 1, 0));
}

}  // namespace
}  // namespace strata::data
