// Oracle: values that the `tokenizers` library gives (specification 9), and errors by hand.
#include "strata/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "strata/base/error.h"
#include "strata/base/json.h"

namespace strata::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class TokenizerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("strata_tokenizer_") + info->name() + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  std::unique_ptr<Tokenizer> load(const Json& document) {
    write("tokenizer.json", document.dump());
    return Tokenizer::load(folder_);
  }
  std::string load_error(const std::string& content) {
    write("tokenizer.json", content);
    try {
      Tokenizer::load(folder_);
    } catch (const FormatError& error) {
      return error.what();
    }
    return "no error";
  }
  static std::vector<std::string> tokens(const Tokenizer& tokenizer, std::string_view text,
                                         bool special = true) {
    std::vector<std::string> out;
    for (const int32_t id : tokenizer.encode(text, special))
      out.push_back(tokenizer.id_to_token(id));
    return out;
  }

  fs::path folder_;
};

// A BPE document over single characters and the results of `merges`.
Json bpe(const std::string& characters,
         const std::vector<std::pair<std::string, std::string>>& merges) {
  Json vocab = Json::object(), pairs = Json::array();
  for (const char c : characters) vocab[std::string(1, c)] = vocab.size();
  for (const auto& [left, right] : merges) {
    vocab[left + right] = vocab.size();
    pairs.push_back({left, right});
  }
  return {{"version", "1.0"},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", pairs}}}};
}

Json added(int id, const std::string& content, bool normalized = false) {
  return {{"id", id},        {"content", content},       {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", normalized}, {"special", false}};
}

const std::vector<std::pair<std::string, std::string>> kMerges = {
    {"b", "c"}, {"a", "b"}, {"a", "bc"}, {"a", "a"}, {"aa", "a"}, {"aa", "aa"}};

TEST_F(TokenizerTest, MergesLowestRankLeftmostFirst) {
  const auto tokenizer = load(bpe("abc", kMerges));
  EXPECT_THAT(tokens(*tokenizer, "aaaaa"), ElementsAre("aa", "aaa"));
  EXPECT_THAT(tokens(*tokenizer, "aaaaaaa"), ElementsAre("aaaa", "aaa"));
  EXPECT_THAT(tokens(*tokenizer, "axb"), ElementsAre("ab"));  // x is dropped, then a and b merge
}

TEST_F(TokenizerTest, MergesMayBeTextsOrPairs) {
  Json document = bpe("ab", {});
  document["model"]["vocab"]["ab"] = 2;
  document["model"]["merges"] = Json::array({"a b"});
  EXPECT_THAT(load(document)->encode("ab"), ElementsAre(2));
}

// The heap for long pieces and the scan for short ones, against merging by the definition.
TEST_F(TokenizerTest, MergesAsDefinedAtAnyLength) {
  const auto tokenizer = load(bpe("abc", kMerges));
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> expected;
    std::string text;
    for (size_t i = random() % 80; i > 0; --i) {
      expected.emplace_back(1, static_cast<char>('a' + random() % 3));
      text += expected.back();
    }
    for (bool has_merged = true; has_merged;) {
      has_merged = false;
      for (const auto& [left, right] : kMerges) {
        for (size_t i = 0; i + 1 < expected.size() && !has_merged; ++i) {
          if (expected[i] != left || expected[i + 1] != right) continue;
          expected[i] += right;
          expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          has_merged = true;
        }
        if (has_merged) break;
      }
    }
    ASSERT_EQ(tokens(*tokenizer, text), expected) << text;
  }
}

TEST_F(TokenizerTest, LongRunsTakeLittleTime) {
  const auto tokenizer = load(bpe("abc", kMerges));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(tokenizer->encode(std::string(1'000'000, 'a')).size(), 250'000u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_F(TokenizerTest, AddedTokensMatchLeftmostThenLongest) {
  Json document = bpe("abcd", {});
  document["added_tokens"] = {added(4, "<s>"), added(5, "<s>a"), added(6, "ab"), added(7, "bcd")};
  const auto tokenizer = load(document);
  EXPECT_THAT(tokens(*tokenizer, "<s>ac<s>"), ElementsAre("<s>a", "c", "<s>"));
  EXPECT_THAT(tokens(*tokenizer, "abcd"), ElementsAre("ab", "c", "d"));
}

TEST_F(TokenizerTest, NormalizedAddedTokensMatchAfterNormalisation) {
  Json document = bpe("abcxy ", {});
  document["normalizer"] = {{"type", "Lowercase"}};
  document["added_tokens"] = {added(6, "ABC"), added(7, "XY", /*normalized=*/true)};
  const auto tokenizer = load(document);
  EXPECT_THAT(tokenizer->encode("ABC abc XY xy"), ElementsAre(6, 5, 0, 1, 2, 5, 7, 5, 7));
}

TEST_F(TokenizerTest, RangesPointIntoTheInput) {
  Json document = bpe("ab", {{"a", "b"}});
  document["model"]["unk_token"] = "b";
  const auto tokenizer = load(document);
  const auto ranges = tokenizer->encode_with_ranges(
      "ab\xC3\xA9"
      "a");
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(ranges[1].begin, 2u);
  EXPECT_EQ(ranges[1].end, 4u);
  EXPECT_EQ(ranges[2].begin, 4u);
}

// Invalid bytes count as U+FFFD, as Python's errors="replace" makes them.
TEST_F(TokenizerTest, InvalidUtf8IsReplaced) {
  Json document = bpe("ab", {});
  document["model"]["vocab"]["\xEF\xBF\xBD"] = 2;
  const auto tokenizer = load(document);
  EXPECT_THAT(tokenizer->encode("a\xFF"
                                "b"),
              ElementsAre(0, 2, 1));
  EXPECT_THAT(tokenizer->encode("\xE4\xBD"
                                "a"),
              ElementsAre(2, 0));
  EXPECT_THAT(tokenizer->encode("\xED\xA0\x80"), ElementsAre(2, 2, 2));
  EXPECT_THAT(tokenizer->encode("\xF0\x90\x80"), ElementsAre(2));
  EXPECT_THAT(tokenizer->encode(std::string_view("a\0b", 3)), ElementsAre(0, 1));
}

TEST_F(TokenizerTest, TemplateAddsSpecialTokens) {
  Json document = bpe("ab", {});
  document["added_tokens"] = Json::array({added(2, "<s>")});
  document["added_tokens"][0]["special"] = true;
  document["post_processor"] = Json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}}})");
  write("tokenizer_config.json",
        R"({"bos_token": "<s>", "eos_token": null, "chat_template": "x"})");
  const auto tokenizer = load(document);
  EXPECT_THAT(tokenizer->encode("ab"), ElementsAre(2, 0, 1));
  EXPECT_THAT(tokenizer->encode("ab", false), ElementsAre(0, 1));
  EXPECT_EQ(tokenizer->bos_id(), 2);
  EXPECT_EQ(tokenizer->eos_id(), std::nullopt);
  EXPECT_TRUE(tokenizer->is_special(2));
  EXPECT_EQ(tokenizer->chat_template(), "x");
  EXPECT_EQ(tokenizer->files().size(), 2u);
  tokenizer->set_eos_token("b");
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_THROW(tokenizer->set_pad_token("nope"), ConfigError);
  try {
    tokenizer->set_eos_token("<EOS_TOKEN>");
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("transformers writes this in the place of any token"));
  }
}

TEST_F(TokenizerTest, StreamNeverSplitsCharacters) {
  Json document = bpe("", {});
  for (const char* c : {"Ã", "©", "ð", "Ł", "ĺ", "Ģ", "a"}) {
    document["model"]["vocab"][c] = document["model"]["vocab"].size();
  }
  document["decoder"] = {{"type", "ByteLevel"}};
  const auto tokenizer = load(document);
  StreamDecoder stream(*tokenizer);
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.push(1), "é");
  EXPECT_EQ(stream.push(6), "a");
  for (const int32_t id : {2, 3, 4}) EXPECT_EQ(stream.push(id), "");
  EXPECT_EQ(stream.push(5), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.push(6),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

TEST_F(TokenizerTest, ThreadsShareATokenizer) {
  const auto tokenizer = load(bpe("abc", kMerges));
  const auto expected = tokenizer->encode("abcabcaab");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) EXPECT_EQ(tokenizer->encode("abcabcaab"), expected);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(TokenizerTest, BrokenFilesAreNamed) {
  const std::string good = bpe("ab", {{"a", "b"}}).dump();
  EXPECT_THAT(load_error(good), "no error");
  for (size_t size = 0; size < good.size(); size += 3) {
    EXPECT_THAT(load_error(good.substr(0, size)), HasSubstr("tokenizer.json")) << size;
  }
  const auto change = [&](const char* pointer, const Json& value) {
    Json document = Json::parse(good);
    document[Json::json_pointer(pointer)] = value;
    return load_error(document.dump());
  };
  EXPECT_THAT(load_error("{}"), HasSubstr("no \"model\""));
  EXPECT_THAT(load_error("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(change("/model/vocab/b", 0), HasSubstr("for both"));
  EXPECT_THAT(change("/model/vocab/b", -1), HasSubstr("id -1"));
  EXPECT_THAT(change("/model/vocab/b", 99999999999), HasSubstr("id 99999999999"));
  EXPECT_THAT(change("/model/vocab/b", "x"), HasSubstr("expected an integer"));
  EXPECT_THAT(change("/model/vocab", nullptr), HasSubstr("\"vocab\""));
  EXPECT_THAT(change("/model/merges", nullptr), HasSubstr("\"merges\""));
  EXPECT_THAT(change("/model/merges/0", "a q"), HasSubstr("token \"q\""));
  EXPECT_THAT(change("/model/merges/0", "b a"), HasSubstr("token \"ba\""));
  EXPECT_THAT(change("/model/merges/0", "ab"), HasSubstr("space between"));
  EXPECT_THAT(change("/model/merges/0", Json::array({"a"})), HasSubstr("of 1 strings"));
  EXPECT_THAT(change("/model/merges/0", 3), HasSubstr("model.merges"));
  EXPECT_THAT(change("/model/type", "Nope"), HasSubstr("\"Nope\""));
  EXPECT_THAT(change("/model/type", "Unigram"), HasSubstr("no \"vocab\" list"));
  EXPECT_THAT(change("/model/dropout", 0.1), HasSubstr("dropout"));
  EXPECT_THAT(change("/normalizer", {{"type", "Nope"}}),
              HasSubstr("normalizer: found type \"Nope\""));
  EXPECT_THAT(change("/pre_tokenizer", {{"type", "Nope"}}), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(change("/post_processor", {{"type", "Nope"}}), HasSubstr("post_processor"));
  EXPECT_THAT(change("/decoder", {{"type", "Nope"}}), HasSubstr("decoder"));
  EXPECT_THAT(change("/decoder", 3), HasSubstr("expected an object"));
  EXPECT_THAT(change("/added_tokens", Json::array({added(9, "<x>")})), HasSubstr("found id 9"));
  EXPECT_THAT(change("/pre_tokenizer", Json::parse(R"({"type": "Split", "pattern": {"Regex": "("},
                                                   "behavior": "Isolated"})")),
              HasSubstr("pattern '('"));
}

TEST_F(TokenizerTest, MissingFileIsAnIoError) { EXPECT_THROW(Tokenizer::load(folder_), IoError); }

}  // namespace
}  // namespace strata::text
