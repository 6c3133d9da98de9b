// Records of the settings of `strata tokenize` and `strata preview`.
#include "strata/config/settings/table.h"

namespace strata::config {
namespace {

std::vector<Setting> build_tokenize_table() {
  std::vector<Setting> table = {
      {.name = "model_name_or_path",
       .aliases = {"model", "model_name", "tokenizer_name"},
       .field = STRATA_FIELD(tokenize.model_name_or_path),
       .is_path = true,
       .help = "folder with the tokenizer, or a model's name on the Hub"},
      same_setting("cache_dir", STRATA_FIELD(tokenize.cache_dir)),
      {.name = "input",
       .field = STRATA_FIELD(tokenize.input),
       .help = "what a line of standard input is: text, JSON (a string, a list of messages, or an "
               "object with text or a conversation), or (auto) a conversation if it is JSON with "
               "one, in any form that training reads, else text"},
      {.name = "decode",
       .field = STRATA_FIELD(tokenize.decode),
       .help = "decode instead: a line is a JSON list of ids, or an object with \"ids\""},
      {.name = "file_lengths",
       .field = STRATA_FIELD(tokenize.file_lengths),
       .help = "truncate and pad as the sections truncation and padding of tokenizer.json say, and "
               "add the attention_mask (the tokenizers library does so by itself; transformers and "
               "training do not)"},
      {.name = "add_special_tokens",
       .field = STRATA_FIELD(tokenize.add_special_tokens),
       .help = "let the tokenizer add its tokens; default: to text, not to conversations"},
      {.name = "add_generation_prompt",
       .field = STRATA_FIELD(tokenize.add_generation_prompt),
       .help = "end conversations with the beginning of the assistant's turn"},
      {.name = "skip_special_tokens",
       .field = STRATA_FIELD(tokenize.skip_special_tokens),
       .help = "leave special tokens out of decoded text"},
      same_setting("chat_template_path", STRATA_FIELD(tokenize.chat_template_path)),
      same_setting("chat_template_format", STRATA_FIELD(tokenize.chat_template_format))};
  for (Setting& setting : table) setting.group = "tokenize";
  return table;
}

std::vector<Setting> build_preview_table() {
  std::vector<Setting> table = {
      {.name = "num_examples",
       .field = STRATA_FIELD(preview.num_examples),
       .range = {.min = 0},
       .help = "rows to show"},
      {.name = "preview_split", .field = STRATA_FIELD(preview.split), .help = "the split to show"},
      {.name = "output_html",
       .aliases = {"html"},
       .field = STRATA_FIELD(preview.output_html),
       .help = "also write the preview to this HTML file"}};
  for (Setting& setting : table) setting.group = "preview";
  return table;
}

}  // namespace

std::span<const Setting> tokenize_settings_table() {
  static const std::vector<Setting> table = build_tokenize_table();
  return table;
}

std::span<const Setting> preview_settings_table() {
  static const std::vector<Setting> table = build_preview_table();
  return table;
}

}  // namespace strata::config
