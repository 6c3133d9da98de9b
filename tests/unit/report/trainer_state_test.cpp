// Oracle: tests/golden/trainer_state.json, written by the reference's Trainer.
#include "strata/report/trainer_state.h"

#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::report {
namespace {

const std::string kGolden = std::string(STRATA_SOURCE_DIR) + "/tests/golden/trainer_state.json";

TEST(TrainerState, WritesTheReferencesBytes) {
  const std::string text = read_file(kGolden);
  TrainerState state = parse_trainer_state(text, kGolden);
  EXPECT_EQ(state.global_step, 4);
  EXPECT_EQ(state.log_history.size(), 6u);
  // What the reader does not keep: the control's flags at the moment of the last save.
  state.should_training_stop = true;
  EXPECT_EQ(trainer_state_text(state), text);
}

TEST(TrainerState, RoundTripsUnroundedLosses) {
  TrainerState state;
  state.epoch = 1.0 / 3;
  state.log_history = {{{"epoch", 1.0 / 3}, {"loss", 4.132680892944336}, {"step", 1}}};
  state.best_metric = 0.5;
  const TrainerState again = parse_trainer_state(trainer_state_text(state), "state");
  EXPECT_EQ(again.epoch, state.epoch);
  EXPECT_EQ(again.log_history, state.log_history);
  EXPECT_EQ(again.best_metric, state.best_metric);
  EXPECT_FALSE(again.best_global_step.has_value());
}

// Oracle: json.dumps of the document as a whole.
TEST(TrainerState, WritesRowsAsTheWholeDocumentWould) {
  TrainerState state;
  EXPECT_NE(trainer_state_text(state).find("\n  \"log_history\": [],\n"), std::string::npos);
  state.log_history = {parse_json(R"({"z": "a\nb", "a": {"y": [1, {}], "b": []}})", "row"),
                       Json::object(),
                       {{"step", 2}}};
  const std::string text = trainer_state_text(state);
  EXPECT_EQ(text, dump_python(parse_json(text, "state"), 2, /*sort_keys=*/true) + "\n");
}

// As Trainer writes the callback's state; where it was added twice, a list of both.
TEST(TrainerState, KeepsWhatEarlyStoppingCounted) {
  const std::string one =
      R"({"args": {"early_stopping_patience": 3, "early_stopping_threshold": 0.5},
          "attributes": {"early_stopping_patience_counter": 2}})";
  for (const std::string& callback : {one, "[" + one + ", {\"args\": {}, \"attributes\": {}}]"}) {
    const std::string text =
        R"({"stateful_callbacks": {"EarlyStoppingCallback": )" + callback + "}}";
    const auto found = parse_trainer_state(text, "state").early_stopping;
    ASSERT_TRUE(found);
    EXPECT_EQ(found->patience, 3);
    EXPECT_EQ(found->threshold, 0.5);
    EXPECT_EQ(found->counter, 2);
    TrainerState state;
    state.early_stopping = found;
    const Json written = parse_json(trainer_state_text(state), "state");
    EXPECT_EQ(written.at("stateful_callbacks").at("EarlyStoppingCallback"),
              parse_json(one, "callback"));
  }
  EXPECT_FALSE(parse_trainer_state("{}", "state").early_stopping);
  const std::string bad =
      R"({"stateful_callbacks": {"EarlyStoppingCallback": {"attributes": {"early_stopping_patience_counter": "x"}}}})";
  EXPECT_THROW(parse_trainer_state(bad, "state"), FormatError);
}

TEST(TrainerState, NamesTheKeyOfAWrongType) {
  try {
    parse_trainer_state(R"({"global_step": "many"})", "trainer_state.json");
    FAIL() << "expected a FormatError";
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find("\"global_step\""), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace strata::report
