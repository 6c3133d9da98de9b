// Oracle: by hand, from the marks that published tokenizers hold and those that they do not.
#include "strata/text/templates/template_marks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "../temporary_folder.h"

namespace strata::text {
namespace {

using ::testing::ElementsAreArray;

std::unique_ptr<Tokenizer> tokenizer_with(const std::vector<std::string>& tokens,
                                          const std::string& eos = "") {
  const strata::testing::TemporaryFolder folder;
  Json vocabulary = {{"a", 0}, {"[UNK]", 1}}, added = Json::array();
  for (const std::string& token : tokens) {
    added.push_back({{"id", 2 + added.size()}, {"content", token}, {"special", true}});
  }
  const Json model = {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "[UNK]"}};
  std::ofstream(folder.path() / "tokenizer.json")
      << Json{{"added_tokens", added}, {"model", model}}.dump();
  if (!eos.empty()) {
    std::ofstream(folder.path() / "tokenizer_config.json") << Json{{"eos_token", eos}}.dump();
  }
  return Tokenizer::load(folder.path());
}

struct Case {
  const char* source;
  std::vector<std::string> tokens;
  std::vector<std::string> own, foreign;  // marks without a token
};

TEST(TemplateMarks, MarksThatNeedATokenOfTheirOwn) {
  const std::vector<Case> cases = {
      {"{{ '<|im_start|>' + m.role }}<|im_end|>", {}, {"<|im_end|>", "<|im_start|>"}, {}},
      {"{{ '<|im_start|>' + m.role }}<|im_end|>", {"<|im_end|>"}, {"<|im_start|>"}, {}},
      {"{{ '<|im_start|>' + m.role }}<|im_end|>", {"<|im_end|>", "<|im_start|>user"}, {}, {}},
      {"{# <|x|> #}{{ x['<|y|>'] }}", {}, {"<|y|>"}, {}},
      {"<start_of_turn>{{ x }}<end_of_turn>", {"<start_of_turn>"}, {"<end_of_turn>"}, {}},
      {"<end_of_utterance><|turn>a<turn|>", {}, {"<end_of_utterance>", "<turn|>", "<|turn>"}, {}},
      {"<\uff5cUser\uff5c>a", {}, {"<\uff5cUser\uff5c>"}, {}},
      {"[gMASK]<sop>{{ x }}</s>", {"</s>"}, {"<sop>", "[gMASK]"}, {}},
      {"[INST] {{ x }} [/INST] <<SYS>>", {}, {}, {}},
      {"[INST] {{ x }} [/INST][TOOL_CALLS]", {"[INST]", "[/INST]"}, {"[TOOL_CALLS]"}, {}},
      {"<tools>{{ x }}</tools><think></think><tool_call><function=f>", {}, {}, {}},
      {"a < b |> c <| d > {{ '<|' + r + '|>' }} <||> x<y|", {}, {}, {}},
      {"{{ '<|user|>' }}{{ x }}<|assistant|>", {}, {}, {"<|assistant|>", "<|user|>"}},
      {"{{ '<|user|>' }}{{ x }}<|assistant|>", {"<|user|>"}, {"<|assistant|>"}, {}},
      {"<|user|>{{ x }}<|end|>", {}, {"<|end|>", "<|user|>"}, {}},
      {"{{ '<|x", {}, {}, {}},
  };
  for (const Case& c : cases) {
    const auto tokenizer = tokenizer_with(c.tokens);
    EXPECT_THAT(marks_without_token(c.source, *tokenizer, true), ElementsAreArray(c.own))
        << c.source;
    EXPECT_THAT(marks_without_token(c.source, *tokenizer, false),
                ElementsAreArray(c.foreign.empty() ? c.own : c.foreign))
        << c.source;
  }
}

TEST(TemplateMarks, ATemplateThatWritesAnEndTokenThatIsNotThere) {
  const auto without = tokenizer_with({"</s>"}), with = tokenizer_with({"</s>"}, "</s>");
  for (const char* source : {"{{ x + eos_token }}", "{{ 'a' }}{{ eos_token }}"}) {
    EXPECT_TRUE(lacks_end_token(source, *without)) << source;
    EXPECT_FALSE(lacks_end_token(source, *with)) << source;
  }
  for (const char* source : {"{{ x }} eos_token", "{{ eos_token or '' }}", "{{ 'eos_token' }}",
                             "{% if eos_token %}{{ eos_token }}{% endif %}",
                             "{% if eos_token is defined %}{{ eos_token }}{% endif %}",
                             "{{ eos_token | default('x') }}"}) {
    EXPECT_FALSE(lacks_end_token(source, *without)) << source;
  }
}

TEST(TemplateMarks, DatesOfATemplate) {
  EXPECT_EQ(dates_of("{{ x }} strftime_now('%Y')", 0), "");
  EXPECT_EQ(dates_of("{{ strftime_now('%Y') }}{{ strftime_now(\"%m\") }}", 86400 * 40),
            "1970\n02\n");
  EXPECT_EQ(dates_of("{{ strftime_now(f) }}", 1234567), "1234567\n");
}

}  // namespace
}  // namespace strata::text
