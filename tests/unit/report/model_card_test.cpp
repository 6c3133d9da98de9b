// Oracle: the text by hand; its front matter as YAML reads it.
#include "strata/report/model_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace strata::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ModelCard card_of_run() {
  ModelCard card;
  card.title = "first";
  card.summary = "An adapter for org/base (LoRA), trained on org/rows.";
  card.base_model = "org/base";
  card.datasets = {"org/rows"};
  card.library = "peft";
  card.tags = {"lora", "sft"};
  card.rows = {{{"loss", 4.5}, {"mean_token_accuracy", 0.5}, {"step", int64_t{10}}},
               {{"eval_loss", 3.25}, {"step", int64_t{10}}},
               {{"loss", 2.125}, {"mean_token_accuracy", 0.75}, {"step", int64_t{123456}}},
               {{"train_runtime", 9.5}, {"train_loss", 3.5}, {"step", int64_t{123456}}}};
  card.settings = {{"learning_rate", "0.0002"}};
  card.command = "strata launch --num_processes 2 sft --config settings.json";
  return card;
}

TEST(ModelCard, SaysWhatTheResultIs) {
  const std::string text = model_card_text(card_of_run());
  EXPECT_TRUE(
      text.starts_with("---\nbase_model: \"org/base\"\ndatasets:\n- \"org/rows\"\n"
                       "library_name: peft\ntags:\n- \"lora\"\n- \"sft\"\n---\n"))
      << text;
  EXPECT_THAT(text,
              HasSubstr("\n# first\n\nAn adapter for org/base (LoRA), trained on org/rows.\n"));
  EXPECT_THAT(text, HasSubstr("up to step 123456."));
  EXPECT_THAT(text, HasSubstr("| loss | 2.125 | 3.25 |\n| mean_token_accuracy | 0.75 |  |\n"));
  EXPECT_THAT(text, HasSubstr("| learning_rate | 0.0002 |\n"));
  EXPECT_THAT(text, HasSubstr("`strata launch --num_processes 2 sft --config settings.json`"));
}

TEST(ModelCard, LeavesOutWhatIsNotKnown) {
  ModelCard card = card_of_run();
  card.base_model.clear();
  card.datasets.clear();
  card.rows = {{{"train_loss", 3.5}, {"step", int64_t{2}}}};  // a run too short for a log
  const std::string text = model_card_text(card);
  EXPECT_TRUE(text.starts_with("---\nlibrary_name: peft\n")) << text;
  EXPECT_THAT(text, HasSubstr("| loss | 3.5 |  |\n"));
  card.rows.clear();
  EXPECT_THAT(model_card_text(card), Not(HasSubstr("Figures")));
}

TEST(ModelCard, NothingThatUsersWroteHasMeaningInIt) {
  ModelCard card = card_of_run();
  card.title = "a\n<script>`b`";
  card.base_model = "x\"\ny: z";
  card.settings = {{"data set", "a|b"}};
  const std::string text = model_card_text(card);
  EXPECT_THAT(text, HasSubstr("# a \\<script\\>\\`b\\`\n"));
  EXPECT_THAT(text, HasSubstr("base_model: \"x\\\"\\ny: z\"\n"));
  EXPECT_THAT(text, HasSubstr("| data set | a\\|b |"));
}

TEST(ModelCard, KnowsItsOwn) {
  std::string text = model_card_text(card_of_run());
  EXPECT_TRUE(is_model_card(text));
  const size_t mark = text.find("<!--");
  EXPECT_FALSE(is_model_card(text.erase(mark, text.find('\n', mark) - mark)));
  EXPECT_FALSE(is_model_card("# My model\n"));
}

}  // namespace
}  // namespace strata::report
