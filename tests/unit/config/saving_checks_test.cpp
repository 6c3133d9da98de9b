// Oracle: what TrainingArguments of transformers 5 accepts and refuses for the best checkpoint.
#include "strata/config/checks/saving_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/base/error.h"
#include "strata/config/derived.h"
#include "strata/config/resolve.h"

namespace strata::config {
namespace {

using ::testing::HasSubstr;

struct Row {
  std::vector<std::string> flags;
  std::string error;  // a part of it; empty: none
};

TEST(SavingChecks, TheBestCheckpointNeedsEvaluationsThatMeetIt) {
  const std::string load = "--load_best_model_at_end", save = "--save_strategy",
                    eval = "--eval_strategy", metric = "--metric_for_best_model";
  const std::vector<std::string> by_steps = {load, eval, "steps", "--eval_steps"};
  const auto with = [](std::vector<std::string> flags, const std::vector<std::string>& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  };
  for (const Row& row :
       {Row{{load}, "found save_strategy steps with eval_strategy no"},
        Row{{load, eval, "epoch"}, "found save_strategy steps with eval_strategy epoch"},
        Row{{load, eval, "epoch", save, "epoch"}, ""}, Row{{load, eval, "epoch", save, "best"}, ""},
        Row{{load, save, "no"}, ""}, Row{with(by_steps, {"5", "--save_steps", "10"}), ""},
        Row{with(by_steps, {"5", "--save_steps", "12"}), "save_steps 12 with eval_steps 5"},
        Row{with(by_steps, {"0.1", "--save_steps", "0.3"}), ""},
        Row{with(by_steps, {"0.2", "--save_steps", "0.3"}), "save_steps 0.3 with eval_steps 0.2"},
        Row{with(by_steps, {"0.5", "--save_steps", "10"}), "both fractions of the run"},
        Row{{save, "best", eval, "steps"}, "found best without metric_for_best_model"},
        Row{{save, "best", metric, "loss"}, "found best with eval_strategy no"},
        Row{{save, "best", metric, "loss", eval, "steps"}, ""},
        Row{{metric, "eval_accuracy", eval, "steps"}, "found eval_accuracy, expected a metric"},
        Row{{metric, "mean_token_accuracy", eval, "steps"}, ""}}) {
    std::string found;
    try {
      resolve({.flags = row.flags});
    } catch (const ConfigError& error) {
      found = error.what();
    }
    if (row.error.empty()) {
      EXPECT_EQ(found, "");
    } else {
      EXPECT_THAT(found, HasSubstr(row.error));
    }
  }
}

// What transformers' EarlyStoppingCallback asserts when training begins, and what it warns of.
TEST(SavingChecks, EarlyStoppingNeedsEvaluationsAndAValueOfThem) {
  const std::string patience = "--early_stopping_patience", eval = "--eval_strategy",
                    metric = "--metric_for_best_model", threshold = "--early_stopping_threshold",
                    load = "--load_best_model_at_end";
  const std::string last = "the result is the model of the last step, not of the best evaluation";
  struct Case {
    std::vector<std::string> flags;
    std::string error, warning;
  };
  for (const Case& row :
       {Case{{patience, "3"}, "early_stopping_patience: found 3 with eval_strategy no", ""},
        Case{{patience, "3", eval, "steps"},
             "early_stopping_patience: found 3 without metric_for_best_model",
             ""},
        Case{{patience, "3", eval, "steps", metric, "none"}, "without metric_for_best_model", ""},
        Case{{patience, "3", eval, "steps", metric, "loss"}, "", last},
        Case{{patience, "3", eval, "steps", "--lr_scheduler_type", "reduce_lr_on_plateau"},
             "",
             last},
        Case{{patience, "3", eval, "steps", load, threshold, "0.1"}, "", ""},
        Case{{patience, "-1", eval, "steps", load}, "early_stopping_patience", ""},
        Case{{patience, "3", eval, "steps", load, threshold, "-1"}, "early_stopping_threshold", ""},
        Case{{patience, "0"}, "", ""}, Case{{patience, "none"}, "", ""},
        Case{{threshold, "0.1"}, "", "early_stopping_threshold: has no effect"}}) {
    std::string found, warned;
    try {
      for (const std::string& line : resolve({.flags = row.flags}).warnings) warned += line + "\n";
    } catch (const ConfigError& error) {
      found = error.what();
    }
    EXPECT_THAT(found, HasSubstr(row.error));
    EXPECT_EQ(found.empty(), row.error.empty()) << found;
    EXPECT_THAT(warned, HasSubstr(row.warning));
    EXPECT_EQ(warned.empty(), row.warning.empty()) << warned;
  }
}

TEST(SavingChecks, TheMetricAndItsDirectionFollowTheReference) {
  struct Metric {
    std::vector<std::string> flags;
    std::string key;
    bool is_greater_better;
  };
  const std::vector<std::string> evaluates = {"--eval_strategy", "steps"};
  for (const Metric& row :
       {Metric{{}, "", false}, Metric{{"--load_best_model_at_end"}, "eval_loss", false},
        Metric{{"--lr_scheduler_type", "reduce_lr_on_plateau"}, "eval_loss", false},
        Metric{{"--metric_for_best_model", "eval_loss"}, "eval_loss", false},
        Metric{
            {"--metric_for_best_model", "loss", "--greater_is_better", "true"}, "eval_loss", true},
        Metric{{"--metric_for_best_model", "entropy"}, "eval_entropy", true},
        Metric{{"--metric_for_best_model", "none"}, "", false}}) {
    std::vector<std::string> flags = evaluates;
    flags.insert(flags.end(), row.flags.begin(), row.flags.end());
    const RunConfig config = resolve({.flags = flags}).config;
    EXPECT_EQ(best_metric(config), row.key);
    EXPECT_EQ(is_greater_better(config.train), row.is_greater_better) << row.key;
  }
}

}  // namespace
}  // namespace strata::config
