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
        .help = "classify: a GLUE task, which sets the columns, the kind of labels and the metrics "
                "of evaluations; without dataset_name the data set is nyu-mll/glue",
        .peer = "run_glue.py"},
       {.name = "text_column_names",
        .aliases = {"text_column_name"},
        .field = STRATA_FIELD(classify.text_column_names),
        .resume = Resume::kTraining,
        .help = "classify: columns that are joined into the text to classify; default: those of a "
                "GLUE pair, else sentence, else text"},
       {.name = "text_pair_column_names",
        .aliases = {"text_pair_column_name"},
        .field = STRATA_FIELD(classify.text_pair_column_names),
        .resume = Resume::kTraining,
        .help = "classify: columns of a second text, which the tokenizer's pair template puts "
                "after the first; default: that of a GLUE pair",
        .peer = "Strata"},
       {.name = "text_column_delimiter",
        .field = STRATA_FIELD(classify.text_column_delimiter),
        .resume = Resume::kTraining,
        .help = "classify: text between joined columns"},
       {.name = "label_column_name",
        .field = STRATA_FIELD(classify.label_column_name),
        .resume = Resume::kTraining,
        .help = "classify: column with a label (a text, a whole number, true or false), a list of "
                "several labels, or a number; default: label, else labels"},
       {.name = "do_regression",
        .field = STRATA_FIELD(classify.do_regression),
        .resume = Resume::kTraining,
        .help = "classify: labels are numbers to predict (squared error), not classes; default: "
                "true if the first one has a fraction"},
       {.name = "num_labels",
        .field = STRATA_FIELD(classify.num_labels),
        .resume = Resume::kTensors,
        .range = {.min = 1},
        .help = "classify: number of labels that the head predicts, at least those of the data; "
                "default: those of the data, in a plan those of config.json or 2",
        .peer = "AutoConfig"},
       {.name = "ignore_mismatched_sizes",
        .field = STRATA_FIELD(classify.ignore_mismatched_sizes),
        .resume = Resume::kTraining,
        .help = "classify: a model whose head predicts another number of labels gets a new head"}});
}

}  // namespace strata::config
