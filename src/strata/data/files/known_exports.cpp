#include "strata/data/files/known_exports.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/shell_word.h"
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

// As the readers here take files: a mark of UTF-8 is no part of them, nor is an empty line a row.
constexpr std::string_view kOpened =
    "csv.field_size_limit(sys.maxsize); "
    "sys.stdin.reconfigure(encoding=\"utf-8-sig\",newline=\"\"); ";

// An expression of Python for the rows of such a file.
std::string rows_of(std::string_view extension) {
  if (extension == ".csv") return "csv.DictReader(sys.stdin)";
  if (extension == ".tsv") return "csv.DictReader(sys.stdin,delimiter=\"\\t\")";
  if (extension == ".jsonl") return "map(json.loads,filter(str.strip,sys.stdin))";
  return "(lambda t:json.loads(t) if t.lstrip()[:1]==\"[\" else "
         "map(json.loads,filter(str.strip,t.split(\"\\n\"))))(sys.stdin.read())";
}

[[noreturn]] void refuse(const Row& row, const char* found, const char* expected,
                         const std::string& filter) {
  const std::string file = row.file ? *row.file : "FILE";
  throw FormatError("{}: found {}, expected {}; write them so: {}", row.where(), found, expected,
                    jq_command(file, "(arrays[],objects)|" + filter, rewritten_name(file)));
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

std::string rewritten_name(const std::string& file) {
  constexpr const char* kName = "rewritten.jsonl";
  // Rows may need a second command.
  return std::filesystem::path(file).filename() == kName ? "rewritten2.jsonl" : kName;
}

std::string jq_command(const std::string& file, const std::string& program, const std::string& to) {
  const FileFormat format = file_format(file);
  const std::string word = shell_word(file);
  std::string reader;  // what makes JSON of other files
  if (format.extension == ".parquet" || format.extension == ".arrow") {
    reader = fmt::format(
        "python3 -c 'import datasets,sys; "
        "datasets.Dataset.from_{}(sys.argv[1]).to_json(sys.stdout.buffer)' {} | ",
        format.extension == ".arrow" ? "file" : "parquet", word);
  } else if (format.is_compressed) {
    reader = fmt::format("{} -dc {} | ", file.ends_with(".zst") ? "zstd" : "gzip", word);
  } else if (is_table(format.extension)) {
    reader = fmt::format(
        "python3 -c 'import csv,json,sys; {}[print(json.dumps(r)) for r in {}]' < {} | ", kOpened,
        rows_of(format.extension), word);
  }
  return fmt::format("{}jq -c {}{} > {}", reader, shell_word(program),
                     reader.empty() ? " " + word : "", shell_word(to));
}

std::string literal_command(const std::string& file, const std::string& column) {
  const FileFormat format = file_format(file);
  const bool is_json = format.extension == ".jsonl" || format.extension == ".json";
  if (format.is_compressed || !(is_json || is_table(format.extension))) return "";
  return fmt::format(
      "python3 -c 'import ast,csv,json,sys; {}"
      "[print(json.dumps(dict(r,{}=ast.literal_eval(r[\"{}\"])))) for r in {}]' < {} > {}",
      kOpened, column, column, rows_of(format.extension), shell_word(file), rewritten_name(file));
}

}  // namespace strata::data
