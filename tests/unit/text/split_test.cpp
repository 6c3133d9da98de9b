// Oracle: Oniguruma, which matches the patterns that the hand-written splits stand for.
#include "strata/text/split_fast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "strata/base/json.h"
#include "strata/text/pre_tokenizer.h"
#include "strata/text/regex.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> split(FastSplit fast, const std::string& text) {
  Arena arena;
  std::vector<Piece> pieces;
  fast(arena.input(text), pieces);
  std::vector<std::string> out;
  for (const Piece& piece : pieces) out.emplace_back(piece.text);
  return out;
}

// The matches, and what lies between them.
std::vector<std::string> match(const Regex& regex, const std::string& text) {
  std::vector<std::string> out;
  size_t done = 0;
  for (const auto& [begin, end] : regex.find_all(text)) {
    if (begin > done) out.push_back(text.substr(done, begin - done));
    out.push_back(text.substr(begin, end - begin));
    done = end;
  }
  if (done < text.size()) out.push_back(text.substr(done));
  return out;
}

class FastSplitTest : public ::testing::TestWithParam<std::string_view> {};

TEST_P(FastSplitTest, EqualsThePattern) {
  const FastSplit fast = find_fast_split(GetParam());
  ASSERT_NE(fast, nullptr);
  const Regex regex{std::string(GetParam())};
  const std::u32string common =
      U" \t\n\r'sStTrReEvVmMlLdDaZ019.,!-_/\u00a0\u0085\u2028\u3000\u017f\u212a"
      U"éßΣ漢カぁ\u9fa5\u9fa6\u303f\u3040\u30ff\u3100$|~"
      U"\u0001\ue000ǅʰª\u0301\u0300\u20dd\u093e\u200d²Ⅷ٣😀";
  std::mt19937 random(11);
  for (int round = 0; round < 30'000; ++round) {
    std::string text;
    const size_t size = random() % 12;
    for (size_t i = 0; i < size; ++i) {
      char32_t c = common[random() % common.size()];
      if (random() % 8 == 0) c = random() % 0x20000;
      if (c < 0xD800 || c > 0xDFFF) append_utf8(text, c);
    }
    ASSERT_EQ(split(fast, text), match(regex, text)) << Json(text).dump(-1, ' ', true);
  }
}

TEST_P(FastSplitTest, ClassifiesEveryCharacterAsThePattern) {
  const FastSplit fast = find_fast_split(GetParam());
  const Regex regex{std::string(GetParam())};
  std::string text;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    text += 'a';
    append_utf8(text, c);
    append_utf8(text, c);
    text += '1';
    if (text.size() > 4000) {
      ASSERT_EQ(split(fast, text), match(regex, text));
      text.clear();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, FastSplitTest,
                         ::testing::Values(kGpt2Pattern, kLlama3Pattern, kQwen2Pattern,
                                           kQwen35Pattern, kO200kPattern, kTekkenPattern,
                                           kDigits3Pattern, kIdeographsPattern, kDeepSeekPattern));

TEST(O200kSplit, PublishedValues) {
  const FastSplit fast = find_fast_split(kO200kPattern);
  EXPECT_THAT(split(fast, "HelloWorld don't"), ElementsAre("Hello", "World", " don't"));
  EXPECT_THAT(split(fast, "HTTPServer ABC's"), ElementsAre("HTTPServer", " ABC's"));
  EXPECT_THAT(split(fast, "a/b//\n12345"), ElementsAre("a", "/b", "//\n", "123", "45"));
}

TEST(DeepSeekSplit, PublishedValues) {
  const FastSplit fast = find_fast_split(kDeepSeekPattern);
  EXPECT_THAT(split(fast, "#include <stdio.h>\n"),
              ElementsAre("#include", " <", "stdio", ".h", ">\n"));
  EXPECT_THAT(split(find_fast_split(kDigits3Pattern), "a1234b"), ElementsAre("a", "123", "4", "b"));
  EXPECT_THAT(split(find_fast_split(kIdeographsPattern), "a漢字かb"),
              ElementsAre("a", "漢字か", "b"));
}

TEST(Llama3Split, PublishedValues) {
  const FastSplit fast = find_fast_split(kLlama3Pattern);
  EXPECT_THAT(split(fast, "Hello  world"), ElementsAre("Hello", " ", " world"));
  EXPECT_THAT(split(fast, "I'LL don't"), ElementsAre("I", "'LL", " don", "'t"));
  EXPECT_THAT(split(fast, "a\n\n  b"), ElementsAre("a", "\n\n", " ", " b"));
  EXPECT_THAT(split(fast, "12345678"), ElementsAre("123", "456", "78"));
  EXPECT_THAT(split(fast, "(abc)"), ElementsAre("(abc", ")"));
  EXPECT_THAT(split(fast, "¿qué?  \n"), ElementsAre("¿qué", "?", "  \n"));
}

std::vector<std::string> pre_tokenize(const Json& json, const std::string& text) {
  Arena arena;
  std::vector<Piece> pieces;
  make_pre_tokenizer(json, "test")->split(arena.input(text), arena, pieces);
  std::vector<std::string> out;
  for (const Piece& piece : pieces) out.emplace_back(piece.text);
  return out;
}

TEST(Split, Behaviors) {
  const auto run = [](const char* behavior, bool invert = false) {
    return pre_tokenize({{"type", "Split"},
                         {"pattern", {{"String", "-"}}},
                         {"behavior", behavior},
                         {"invert", invert}},
                        "a--b-c-");
  };
  EXPECT_THAT(run("Removed"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(run("Isolated"), ElementsAre("a", "-", "-", "b", "-", "c", "-"));
  EXPECT_THAT(run("MergedWithPrevious"), ElementsAre("a-", "-", "b-", "c-"));
  EXPECT_THAT(run("MergedWithNext"), ElementsAre("a", "-", "-b", "-c", "-"));
  EXPECT_THAT(run("Contiguous"), ElementsAre("a", "--", "b", "-", "c", "-"));
  EXPECT_THAT(run("Removed", true), ElementsAre("-", "-", "-", "-"));
}

TEST(ByteLevel, PrefixSpaceUnlessThereIsOne) {
  const Json json = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  EXPECT_THAT(pre_tokenize(json, "\ta"), ElementsAre("Ġ", "ĉ", "a"));
  EXPECT_THAT(pre_tokenize(json, " é"), ElementsAre("ĠÃ©"));
}

TEST(Metaspace, CutsBeforeEachMark) {
  const Json json = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}, {"split", true}};
  EXPECT_THAT(pre_tokenize(json, "Hey  you "), ElementsAre("▁Hey", "▁", "▁you", "▁"));
}

}  // namespace
}  // namespace strata::text
