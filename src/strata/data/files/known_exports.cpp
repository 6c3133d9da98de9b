#include "strata/data/files/known_exports.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/data/files/file_format.h"

namespace strata::data {
namespace {

bool has_parts(const Json* list) {
  return list != nullptr && list->is_array() && !list->empty() &&
         std::ranges::all_of(*list, [](const Json& turn) {
           return turn.is_object() && turn.contains("parts") && turn["parts"].is_array();
         });
}

// {"contents": [{"role": "model", "parts": [{"text": ...}]}], "systemInstruction": {"parts": ...}}.
std::string gemini_filter(const Row& row) {
  constexpr std::string_view kText = "([.parts[].text]|join(\"\"))";
  std::string filter = fmt::format(
      ".messages=[.contents[]|{{role:(if .role==\"model\" then \"assistant\" else .role//\"user\" "
      "end),content:{}}}]|del(.contents)",
      kText);
  for (const char* name : {"systemInstruction", "system_instruction"}) {
    if (!row.fields.contains(name)) continue;
    filter += fmt::format("|.system=(.{}|{})|del(.{})", name, kText, name);
  }
  return filter;
}

constexpr std::string_view kOpenAiPairs =
    ".prompt=.input.messages|.tools=.input.tools|.chosen=.preferred_output|"
    ".rejected=.non_preferred_output|del(.input,.preferred_output,.non_preferred_output)";

constexpr std::string_view kGlaive =
    ".system|=(.//\"\"|ltrimstr(\"SYSTEM: \"))|"
    ".messages=[.chat|match(\"(?s)(USER|ASSISTANT|FUNCTION RESPONSE): (.*?)"
    "\\\\s*(?:<[|]endoftext[|]>)?\\\\s*(?=USER: |ASSISTANT: |FUNCTION RESPONSE: |\\\\z)\";\"g\")"
    ".captures|{role:({\"USER\":\"user\",\"ASSISTANT\":\"assistant\"}[.[0].string]//\"tool\"),"
    "content:.[1].string}]|del(.chat)";

bool is_turns_in_text(const Json* chat) {
  if (chat == nullptr || !chat->is_string()) return false;
  const auto& text = chat->get_ref<const std::string&>();
  return text.find("USER: ") != std::string::npos && text.find("ASSISTANT: ") != std::string::npos;
}

bool is_table(std::string_view extension) { return extension == ".csv" || extension == ".tsv"; }

std::string rows_of_table(std::string_view extension) {
  return extension == ".csv" ? "csv.DictReader(sys.stdin)"
                             : "csv.DictReader(sys.stdin,delimiter=\"\\t\")";
}

[[noreturn]] void refuse(const Row& row, const char* found, const char* expected,
                         const std::string& filter) {
  throw FormatError("{}: found {}, expected {}; write them so: {}", row.where(), found, expected,
                    jq_command(row.file ? *row.file : "FILE", filter));
}

}  // namespace

void refuse_known_exports(const Row& row) {
  if (has_parts(row.find("contents"))) {
    refuse(row, "a conversation as Gemini has it (\"parts\" in \"contents\")", "\"messages\"",
           gemini_filter(row));
  }
  const Json* input = row.find("input");
  if (row.find("preferred_output") != nullptr && row.find("non_preferred_output") != nullptr &&
      input != nullptr && input->is_object()) {
    refuse(row, "preferences as OpenAI has them (\"preferred_output\", \"non_preferred_output\")",
           "\"prompt\", \"chosen\" and \"rejected\", for strata dpo", std::string(kOpenAiPairs));
  }
  if (is_turns_in_text(row.find("chat"))) {
    refuse(row, "a conversation as one text (\"USER: ... ASSISTANT: ...\" in \"chat\")",
           "\"messages\"", std::string(kGlaive));
  }
}

std::string jq_command(const std::string& file, const std::string& filter) {
  const FileFormat format = file_format(file);
  std::string reader;  // what makes JSON of other files
  if (format.extension == ".parquet" || format.extension == ".arrow") {
    reader = fmt::format(
        "python3 -c 'import datasets,sys; "
        "datasets.Dataset.from_{}(sys.argv[1]).to_json(sys.stdout.buffer)' {} | ",
        format.extension == ".arrow" ? "file" : "parquet", file);
  } else if (format.is_compressed) {
    reader = fmt::format("{} -dc {} | ", file.ends_with(".zst") ? "zstd" : "gzip", file);
  } else if (is_table(format.extension)) {
    reader = fmt::format(
        "python3 -c 'import csv,json,sys; csv.field_size_limit(sys.maxsize); "
        "[print(json.dumps(r)) for r in {}]' < {} | ",
        rows_of_table(format.extension), file);
  }
  return fmt::format("{}jq -c '(arrays[],objects)|{}'{} > rewritten.jsonl", reader, filter,
                     reader.empty() ? " " + file : "");
}

std::string literal_command(const std::string& file, const std::string& column) {
  const FileFormat format = file_format(file);
  const bool is_lines = format.extension == ".jsonl" || format.extension == ".json";
  if (format.is_compressed || !(is_lines || is_table(format.extension))) return "";
  return fmt::format(
      "python3 -c 'import ast,csv,json,sys; csv.field_size_limit(sys.maxsize); "
      "[print(json.dumps(dict(r,{}=ast.literal_eval(r[\"{}\"])))) for r in {}]' < {} > "
      "rewritten.jsonl",
      column, column, is_lines ? "map(json.loads,sys.stdin)" : rows_of_table(format.extension),
      file);
}

}  // namespace strata::data
