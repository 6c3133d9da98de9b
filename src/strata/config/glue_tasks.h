// The tasks of GLUE as transformers' run_glue.py knows them: columns, kind of label, splits, and
// what an evaluation of labels tells, with a task and without. Never: data.
#pragma once

#include <string_view>
#include <vector>

#include "strata/config/run_config.h"

namespace strata::config {

struct GlueTask {
  std::string_view name;
  std::string_view first, second;  // columns of texts; second empty: there is one text
  bool tells_number = false;
  std::string_view splits = {};  // empty: the recipe's
  // Evaluated beside the first that there is of these; empty: there is none.
  std::string_view second_split = {};
  std::vector<std::string_view> figures = {"accuracy"};
};

// What names of its figures end with.
inline constexpr std::string_view kSecondEvaluation = "_mm";

// nullptr: there is none of that name.
const GlueTask* find_glue_task(std::string_view name);

// Names of the figures that evaluations of the run's labels give, in their order: those of its
// task, or of its kind of labels.
std::vector<std::string_view> label_figures_of(const ClassifyConfig& classify);

}  // namespace strata::config
