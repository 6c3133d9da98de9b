// Records of the settings of the recipe classify.
#include "strata/config/settings/table.h"

namespace strata::config {

std::vector<Setting> classification_settings() {
  return with_group(
      "classification", "run_classification.py",
      {{.name = "task_name",
        .field = STRATA_FIELD(classify.task_name),
        .resume = Resume::kTraining,
        .choices = {"cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"},
        .help = "classify: a task of GLUE, which names the columns and says what labels are and "
                "which figures evaluations give; without dataset_name the set is nyu-mll/glue",
        .peer = "run_glue.py"},
       {.name = "text_column_names",
        .aliases = {"text_column_name"},
        .field = STRATA_FIELD(classify.text_column_names),
        .resume = Resume::kTraining,
        .help = "classify: columns whose texts are joined to the one that is classified; default: "
                "a pair of GLUE's columns, else sentence, or text where that is not there"},
       {.name = "text_pair_column_names",
        .aliases = {"text_pair_column_name"},
        .field = STRATA_FIELD(classify.text_pair_column_names),
        .resume = Resume::kTraining,
        .help = "classify: columns of a second text, which the tokenizer's template of pairs puts "
                "behind the first; default: that of a pair of GLUE's columns",
        .peer = "Strata"},
       {.name = "text_column_delimiter",
        .field = STRATA_FIELD(classify.text_column_delimiter),
        .resume = Resume::kTraining,
        .help = "classify: what stands between several joined texts"},
       {.name = "label_column_name",
        .field = STRATA_FIELD(classify.label_column_name),
        .resume = Resume::kTraining,
        .help = "classify: column with a label (a text, a whole number, true or false), a list of "
                "several labels, or a number; default: label, or labels where that is not there"},
       {.name = "do_regression",
        .field = STRATA_FIELD(classify.do_regression),
        .resume = Resume::kTraining,
        .help = "classify: labels are numbers to be told (squared error), not classes; default: "
                "where the first of them has a fraction"},
       {.name = "num_labels",
        .field = STRATA_FIELD(classify.num_labels),
        .resume = Resume::kTensors,
        .range = {.min = 1},
        .help = "classify: labels that the head tells, at least those of the data; default: those "
                "of the data, in a plan those of config.json or 2",
        .peer = "AutoConfig"},
       {.name = "ignore_mismatched_sizes",
        .field = STRATA_FIELD(classify.ignore_mismatched_sizes),
        .resume = Resume::kTraining,
        .help = "classify: a model whose head tells another number of labels gets a new one"}});
}

}  // namespace strata::config
