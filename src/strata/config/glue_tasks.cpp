#include "strata/config/glue_tasks.h"

#include <algorithm>

namespace strata::config {
namespace {

const std::vector<GlueTask>& glue_tasks() {
  static const std::vector<std::string_view> kOfAnswers = {"accuracy", "f1", "combined_score"};
  static const std::vector<GlueTask> tasks = {
      {.name = "cola", .first = "sentence", .second = {}, .figures = {"matthews_correlation"}},
      {.name = "mnli",
       .first = "premise",
       .second = "hypothesis",
       .splits = "train,validation_matched,validation",
       .second_split = "validation_mismatched"},
      {.name = "mrpc", .first = "sentence1", .second = "sentence2", .figures = kOfAnswers},
      {.name = "qnli", .first = "question", .second = "sentence"},
      {.name = "qqp", .first = "question1", .second = "question2", .figures = kOfAnswers},
      {.name = "rte", .first = "sentence1", .second = "sentence2"},
      {.name = "sst2", .first = "sentence", .second = {}},
      {.name = "stsb",
       .first = "sentence1",
       .second = "sentence2",
       .tells_number = true,
       .figures = {"pearson", "spearmanr", "combined_score"}},
      {.name = "wnli", .first = "sentence1", .second = "sentence2"}};
  return tasks;
}

}  // namespace

const GlueTask* find_glue_task(std::string_view name) {
  const auto task = std::ranges::find(glue_tasks(), name, &GlueTask::name);
  return task == glue_tasks().end() ? nullptr : &*task;
}

std::vector<std::string_view> label_figures_of(const ClassifyConfig& classify) {
  if (const GlueTask* task = find_glue_task(classify.task_name)) return task->figures;
  switch (classify.problem) {
    case LabelProblem::kNumbers:
      return {"mse"};
    case LabelProblem::kLabels:
      return {"f1"};
    case LabelProblem::kClasses:
      break;
  }
  return {"accuracy", "f1"};
}

}  // namespace strata::config
