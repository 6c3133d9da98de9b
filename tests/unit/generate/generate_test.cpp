// Oracle: the whole text computed anew for every token; transformers' greedy ids are compared in
// tests/parity/test_generate.py.
#include "strata/generate/generate.h"

#include <gtest/gtest.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "tiny_checkpoint.h"

namespace strata::generate {
namespace {

using testing::message_of;

class GenerateTest : public ::testing::Test {
 protected:
  GenerateTest() { write_checkpoint(folder_.path()); }

  std::vector<int32_t> plain(const std::vector<int32_t>& prompt, int64_t count) {
    return Generator(model())
        .generate(prompt, {.max_new_tokens = count, .use_cache = false}, greedy_)
        .ids;
  }
  // Of a generator that keeps what it has of the text before.
  void check_next_texts();
  LoadedModel& model() {
    if (!model_) model_ = std::make_unique<LoadedModel>(LoadOptions{.model = folder_.path()});
    return *model_;
  }

  strata::testing::TemporaryFolder folder_;
  std::unique_ptr<LoadedModel> model_;
  Sampler greedy_{{}, 0};
};

TEST_F(GenerateTest, CacheGivesTheSameIds) {
  const std::vector<int32_t> prompt{3, 1, 4, 1, 5};
  EXPECT_EQ(Generator(model()).generate(prompt, {.max_new_tokens = 12}, greedy_).ids,
            plain(prompt, 12));
}

void GenerateTest::check_next_texts() {
  Generator generator(model());
  const std::vector<std::vector<int32_t>> texts{
      {3, 1, 4}, {3, 1, 4, 9, 9, 9, 9}, {3, 1, 4}, {3, 7}, {8, 8}, {8, 8, 1, 2, 3, 4, 5, 6}};
  for (const auto& text : texts) {
    EXPECT_EQ(generator.generate(text, {.max_new_tokens = 6}, greedy_).ids, plain(text, 6));
  }
  // A conversation: the last text and its answer come back with more behind them.
  std::vector<int32_t> text{1, 2, 3};
  for (int turn = 0; turn < 3; ++turn) {
    const auto answer = generator.generate(text, {.max_new_tokens = 4}, greedy_).ids;
    EXPECT_EQ(answer, plain(text, 4));
    text.insert(text.end(), answer.begin(), answer.end());
    text.push_back(turn);
  }
}

TEST_F(GenerateTest, NextTextsReuseWhatIsCommon) { check_next_texts(); }

TEST_F(GenerateTest, NextTextsGoOnFromStates) {
  for (const char* config : {kTinyMamba, kTinySideBySide, kTinySingleModules, kTinyConv}) {
    write_checkpoint(folder_.path(), config);
    model_.reset();
    check_next_texts();
  }
}

TEST_F(GenerateTest, StopsForEachReason) {
  const std::vector<int32_t> prompt{6, 2};
  const std::vector<int32_t> free = plain(prompt, 8);
  Generator generator(model());
  std::vector<int32_t> seen;
  const OnToken keep = [&](int32_t id) {
    seen.push_back(id);
    return true;
  };
  Continuation result = generator.generate(prompt, {.max_new_tokens = 8}, greedy_, keep);
  EXPECT_EQ(result.reason, StopReason::kMaxNewTokens);
  EXPECT_EQ(seen, free);
  seen.clear();
  result = generator.generate(prompt, {.max_new_tokens = 8, .eos_ids = {free[3]}}, greedy_, keep);
  EXPECT_EQ(result.reason, StopReason::kEndOfText);
  EXPECT_EQ(result.ids.back(), free[3]);
  EXPECT_EQ(seen.size() + 1, result.ids.size());
  result =
      generator.generate(prompt, {.max_new_tokens = 8}, greedy_, [](int32_t) { return false; });
  EXPECT_EQ(result.reason, StopReason::kStoppedByUser);
  EXPECT_EQ(result.ids.size(), 1u);
  result = generator.generate(prompt, {.max_new_tokens = 100}, greedy_);
  EXPECT_EQ(result.reason, StopReason::kContextLimit);
  EXPECT_EQ(result.ids.size(), 30u);
}

// A long prompt, of which parts are computed; what there is of them serves the next text.
TEST_F(GenerateTest, StopsBetweenThePartsOfAPrompt) {
  for (const char* config : {R"("model_type": "llama", "num_key_value_heads": 1)",
                             R"("model_type": "lfm2", "num_key_value_heads": 1,
                                "layer_types": ["conv", "full_attention"])"}) {
    write_checkpoint(folder_.path(), fmt::format(R"({{{}, "vocab_size": 40, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 2048, "dtype": "float32"}})",
                                                 config));
    model_.reset();
    std::vector<int32_t> prompt(1200);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * i % 37);
    Generator generator(model());
    int num_questions = 0;
    const Continuation stopped = generator.generate(
        prompt, {.max_new_tokens = 3, .is_asked_to_stop = [&] { return ++num_questions == 2; }},
        greedy_);
    EXPECT_EQ(stopped.reason, StopReason::kStoppedByUser);
    EXPECT_TRUE(stopped.ids.empty());
    EXPECT_EQ(num_questions, 2);
    EXPECT_EQ(generator.generate(prompt, {.max_new_tokens = 3}, greedy_).ids, plain(prompt, 3));
    const std::vector<int32_t> other(prompt.begin() + 1, prompt.begin() + 700);
    EXPECT_EQ(generator.generate(other, {.max_new_tokens = 3}, greedy_).ids, plain(other, 3));
  }
}

TEST_F(GenerateTest, SameSeedSameAnswer) {
  const std::vector<int32_t> prompt{6, 2};
  const auto sampled = [&](uint64_t seed) {
    Sampler sampler({.do_sample = true, .temperature = 2}, seed);
    return Generator(model()).generate(prompt, {.max_new_tokens = 16}, sampler).ids;
  };
  EXPECT_EQ(sampled(1), sampled(1));
  EXPECT_NE(sampled(1), sampled(2));
}

TEST_F(GenerateTest, RefusesPromptsThatCannotBe) {
  Generator generator(model());
  const auto message = [&](std::vector<int32_t> prompt) {
    return message_of<ConfigError>([&] { generator.generate(prompt, {}, greedy_); });
  };
  EXPECT_NE(message({}).find("found no tokens"), std::string::npos);
  EXPECT_NE(message({40}).find("found token id 40, expected ids below 40"), std::string::npos);
}

// The number that config.json gives is always named, beside what an adapter puts before the text.
TEST_F(GenerateTest, SaysWhichTextsFit) {
  struct Row {
    int64_t in_front;
    std::string expected;
  };
  for (const Row& row :
       {Row{0, "found 32 tokens, expected fewer than 32 (max_position_embeddings); shorten it"},
        Row{1,
            "found 31 tokens, expected fewer than 31 in addition to 1 virtual token "
            "(max_position_embeddings is 32); shorten it"},
        Row{20,
            "found 12 tokens, expected fewer than 12 in addition to 20 virtual tokens "
            "(max_position_embeddings is 32); shorten it"}}) {
    LoadOptions options{.model = folder_.path()};
    if (row.in_front > 0) {
      options.adapter = folder_ / "prompt";
      write_prompt(options.adapter, row.in_front, /*columns=*/16);
    }
    LoadedModel loaded(options);
    EXPECT_EQ(loaded.max_text_tokens(), 32 - row.in_front);
    const std::vector<int32_t> prompt(static_cast<size_t>(32 - row.in_front), 1);
    const std::string message =
        message_of<ConfigError>([&] { Generator(loaded).generate(prompt, {}, greedy_); });
    EXPECT_NE(message.find(row.expected), std::string::npos) << message;
    // One token less leaves room for one.
    const auto ids = Generator(loaded).generate(std::span(prompt).subspan(1), {}, greedy_).ids;
    EXPECT_EQ(ids.size(), 1u);
  }
}

TEST_F(GenerateTest, TypeIsTheOneAskedFor) {
  LoadedModel loaded({.model = folder_.path(), .dtype = "float32"});
  EXPECT_EQ(loaded.storage_type(), at::kFloat);
  EXPECT_EQ(loaded.num_layers(), 2);
  EXPECT_THROW(LoadedModel({.model = folder_.path(), .dtype = "int8"}), ConfigError);
}

}  // namespace
}  // namespace strata::generate
