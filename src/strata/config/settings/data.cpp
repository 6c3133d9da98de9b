// Records of the settings of data sets, chat formats and pairs of texts.
#include "strata/config/settings/table.h"

namespace strata::config {
namespace {

constexpr std::string_view kData = "data", kPairs = "sequence to sequence";

std::vector<Setting> data_settings() {
  return with_group(
      kData, "SFTConfig",
      {{.name = "dataset_name",
        .field = STRATA_FIELD(data.dataset_name),
        .is_path = true,
        .help = "file, folder, pattern (data/*.jsonl) or Hub name; several with commas between",
        .peer = "ScriptArguments"},
       {.name = "train_file",
        .field = STRATA_FIELD(data.train_file),
        .is_path = true,
        .help = "file to train on, in place of dataset_name",
        .peer = "run_clm.py"},
       {.name = "validation_file",
        .field = STRATA_FIELD(data.validation_file),
        .is_path = true,
        .help = "file to evaluate on, beside train_file",
        .peer = "run_clm.py"},
       {.name = "dataset_config",
        .aliases = {"dataset_config_name"},
        .field = STRATA_FIELD(data.dataset_config),
        .help = "a configuration of the data set, as its README.md lists them, or a folder in it; "
                "default: the one that the README.md calls default",
        .peer = "ScriptArguments"},
       {.name = "dataset_streaming",
        .field = STRATA_FIELD(data.dataset_streaming),
        .help = "take the rows in the files' order, the same in every epoch, and with max_steps "
                "prepare only those that will be used",
        .peer = "ScriptArguments"},
       {.name = "dataset_weights",
        .field = STRATA_FIELD(data.dataset_weights),
        .help = "draw from several data sets with these probabilities until one is used up; "
                "default: one after the other",
        .peer = "datasets.interleave_datasets"},
       {.name = "dataset_columns",
        .field = STRATA_FIELD(data.dataset_columns),
        .help = "other names of columns: messages=dialog prompt=question completion=answer",
        .peer = "Strata"},
       {.name = "on_bad_row",
        .field = STRATA_FIELD(data.on_bad_row),
        .choices = {"error", "skip"},
        .help =
            "what a row does that cannot be read or used: end the run, or be left out and counted",
        .peer = "Strata"},
       {.name = "long_rows",
        .field = STRATA_FIELD(data.long_rows),
        .choices = {"truncate", "drop", "split"},
        .help = "what happens to a row of more than max_length tokens",
        .peer = "Strata"},
       {.name = "splits",
        .field = STRATA_FIELD(data.splits),
        .help = "names of the train split and, after a comma, of the test split; slices as in "
                "train[:10%] or train[100:200]+extra",
        .peer = "PEFT examples/sft"},
       {.name = "dataset_train_split",
        .kind = Kind::kTranslated,
        .help = "name of the train split (first part of splits)",
        .peer = "ScriptArguments"},
       {.name = "dataset_test_split",
        .kind = Kind::kTranslated,
        .help = "name of the test split (second part of splits)",
        .peer = "ScriptArguments"},
       {.name = "dataset_text_field",
        .field = STRATA_FIELD(data.dataset_text_field),
        .help = "column with the text, for examples that are plain text"},
       {.name = "max_length",
        .aliases = {"max_seq_length", "max_seq_len"},
        .field = STRATA_FIELD(data.max_length),
        .range = {.min = 1},
        .null_means = "none",
        .help = "longest sequence in tokens; none (or null): rows stay whole; with packing, the "
                "length of a "
                "packed "
                "row"},
       {.name = "packing",
        .field = STRATA_FIELD(data.packing),
        .help =
            "put several examples into one row; they do not see each other (with packing_strategy "
            "wrapped a row is one document, and they do)"},
       {.name = "packing_strategy",
        .field = STRATA_FIELD(data.packing_strategy),
        .choices = {"bfd", "bfd_split", "wrapped"},
        .synonyms = {{"bfd-requeue", "bfd_split"}},
        .help = "bfd: best fit, longest first; bfd_split: the same, and what is longer than "
                "max_length is split instead of cut; wrapped: one stream cut into rows, each "
                "of which is one document"},
       {.name = "block_size",
        .kind = Kind::kTranslated,
        .help = "tokens of the pieces into which all rows, one behind another, are cut: max_length "
                "with packing and packing_strategy wrapped",
        .peer = "run_clm.py"},
       {.name = "eval_packing",
        .field = STRATA_FIELD(data.eval_packing),
        .help = "packing of the test split; default: as packing"},
       {.name = "completion_only_loss",
        .field = STRATA_FIELD(data.completion_only_loss),
        .help = "train only on completions; default: when the rows are prompt and completion"},
       {.name = "assistant_only_loss",
        .field = STRATA_FIELD(data.assistant_only_loss),
        .help = "train only on what the assistant says"},
       {.name = "shuffle_dataset",
        .field = STRATA_FIELD(data.shuffle_dataset),
        .help = "shuffle the examples once before packing"},
       {.name = "chat_template_path",
        .field = STRATA_FIELD(data.chat_template_path),
        .is_path = true,
        .help = "file with a chat template, a folder whose tokenizer has one, or the name of one "
                "of several that the tokenizer has"},
       {.name = "chat_template_format",
        .field = STRATA_FIELD(data.chat_template_format),
        .choices = {"none", "chatml", "zephyr", "llama-2", "llama-3", "alpaca", "vicuna", "oasst"},
        .help = "a built-in chat template instead of the tokenizer's",
        .peer = "PEFT examples/sft"},
       {.name = "add_special_tokens",
        .field = STRATA_FIELD(data.add_special_tokens),
        .help = "let the tokenizer add its tokens (like BOS) to each row; default: to text, not to "
                "conversations, whose template writes them",
        .peer = "PEFT examples/sft"},
       {.name = "append_concat_token",
        .field = STRATA_FIELD(data.append_concat_token),
        .help = "end every row with the end-of-sequence token, conversations too",
        .peer = "PEFT examples/sft"},
       {.name = "dataset_kwargs",
        .kind = Kind::kTranslated,
        .help = "mapping (or its JSON text) of add_special_tokens and append_concat_token"},
       {.name = "dataset_num_proc",
        .aliases = {"preprocessing_num_workers"},
        .field = STRATA_FIELD(data.dataset_num_proc),
        .range = {.min = 1, .max = 1024},
        .help = "threads that prepare the data; default: all cores. Never changes the result"},
       {.name = "dataset_cache",
        .field = STRATA_FIELD(data.dataset_cache),
        .help =
            "keep the tokenized rows in HF_HOME/strata for the next run with the same files and "
            "settings",
        .peer = "Strata"},
       {.name = "eos_token",
        .field = STRATA_FIELD(data.eos_token),
        .help = "end-of-sequence token; default: the tokenizer's"},
       {.name = "pad_token",
        .field = STRATA_FIELD(data.pad_token),
        .help = "padding token; default: the tokenizer's, else the end-of-sequence token"}});
}

std::vector<Setting> pair_settings() {
  return with_group(
      kPairs, "run_summarization.py",
      {{.name = "text_column",
        .aliases = {"source_column", "input_column"},
        .field = STRATA_FIELD(data.text_column),
        .help = "seq2seq: column with the source text; default: the first"},
       {.name = "summary_column",
        .aliases = {"target_column", "label_column"},
        .field = STRATA_FIELD(data.summary_column),
        .help = "seq2seq: column with the target text; default: the second"},
       {.name = "source_lang",
        .field = STRATA_FIELD(data.source_lang),
        .help = "seq2seq: key of the source text in a column named translation",
        .peer = "run_translation.py"},
       {.name = "target_lang",
        .field = STRATA_FIELD(data.target_lang),
        .help = "seq2seq: key of the target text in a column named translation",
        .peer = "run_translation.py"},
       {.name = "source_prefix",
        .field = STRATA_FIELD(data.source_prefix),
        .help = "seq2seq: text before every source, such as \"summarize: \""},
       {.name = "max_source_length",
        .field = STRATA_FIELD(data.max_source_length),
        .range = {.min = 1, .max = 1 << 23},
        .help = "seq2seq: longest source in tokens; its end is cut"},
       {.name = "max_target_length",
        .field = STRATA_FIELD(data.max_target_length),
        .range = {.min = 1, .max = 1 << 23},
        .help = "seq2seq: longest target in tokens; its end is cut"},
       {.name = "predict_with_generate",
        .field = STRATA_FIELD(train.predict_with_generate),
        .help = "seq2seq: evaluations generate answers and report the share of exact ones",
        .peer = "Seq2SeqTrainingArguments"},
       {.name = "generation_max_length",
        .field = STRATA_FIELD(train.generation_max_length),
        .range = {.min = 2},
        .help = "seq2seq: longest generated answer in tokens, the start token counted; default: "
                "max_target_length",
        .peer = "Seq2SeqTrainingArguments"}});
}

}  // namespace

std::vector<Setting> row_settings() { return joined({data_settings, pair_settings}); }

}  // namespace strata::config
