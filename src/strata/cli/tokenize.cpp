// `strata tokenize`: text and conversations to ids, tokens and offsets, and back.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <optional>

#include <fmt/format.h>

#include "strata/base/error.h"
#include "strata/base/exact_json.h"
#include "strata/base/json.h"
#include "strata/base/near_path.h"
#include "strata/base/visible_text.h"
#include "strata/cli/command.h"
#include "strata/cli/line_reader.h"
#include "strata/cli/run_sources.h"
#include "strata/cli/waiting_line.h"
#include "strata/config/describe.h"
#include "strata/data/rows/conversation_row.h"
#include "strata/hf/hub/model.h"
#include "strata/text/templates/builtin_templates.h"
#include "strata/text/templates/chat_template.h"
#include "strata/text/tokenizer.h"

namespace strata::cli {
namespace {

constexpr const char* kUsage =
    "usage: strata tokenize --model FOLDER [flags] < lines > lines.jsonl\n"
    "       strata tokenize --model FOLDER --decode [flags] < ids.jsonl\n\n"
    "Reads lines of text or JSON conversations from standard input and writes one JSON object for\n"
    "each: {\"ids\": [...], \"tokens\": [...], \"offsets\": [[begin, end], ...]}. Offsets count\n"
    "characters (Unicode code points); for a conversation they are those of \"text\", which is "
    "then\n"
    "also written. Flags take hyphens or underscores.\n";

// Byte positions of a text to counts of characters, for positions that only grow slowly.
class CharacterCounter {
 public:
  explicit CharacterCounter(std::string_view text) : starts_(text.size() + 1) {
    uint32_t count = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      starts_[i] = count;
      count += (static_cast<uint8_t>(text[i]) & 0xc0) != 0x80;
      // A byte inside a character counts as that character's begin.
      if ((static_cast<uint8_t>(text[i]) & 0xc0) == 0x80) starts_[i] = count;
    }
    starts_[text.size()] = count;
  }
  uint32_t operator[](uint32_t byte) const { return starts_[byte]; }

 private:
  std::vector<uint32_t> starts_;
};

std::filesystem::path find_folder(const config::TokenizeConfig& config) {
  const std::filesystem::path folder = hf::locate_tokenizer(
      config.model_name_or_path, {.cache = config.cache_dir}, shown_downloads());
  if (std::filesystem::exists(folder)) return folder;
  throw IoError(
      "{}: found no such folder, expected one with a tokenizer, or a model that is in the Hub's "
      "cache or may be downloaded; check the path{}",
      folder.string(), did_you_mean(folder));
}

class TokenizeCommand {
 public:
  explicit TokenizeCommand(const config::TokenizeConfig& config)
      : config_(config), tokenizer_(text::Tokenizer::load(find_folder(config))) {
    text::TemplateSource source = text::choose_chat_template(*tokenizer_, config.chat_template_path,
                                                             config.chat_template_format);
    if (!source.text.empty()) template_.emplace(source.text, source.name, source.tool_text);
  }

  Json answer(const std::string& line, int64_t number) const {
    const std::string where = fmt::format("{}:{}", *input_name_, number);
    require_utf8(line, where);
    if (config_.decode) return decode(parse_json(line, where), where);
    std::optional<Json> json = read_json(line, where);
    if (!json) return encode(line, config_.add_special_tokens.value_or(true));
    if (json->is_string()) {
      return encode(json->get<std::string>(), config_.add_special_tokens.value_or(true));
    }
    if (json->is_array()) return encode_chat(conversation_of(std::move(*json)), number);
    if (data::is_conversation(*json)) return encode_chat(std::move(*json), number);
    if (json->is_object() && json->contains("text") && (*json)["text"].is_string()) {
      return encode((*json)["text"].get<std::string>(), config_.add_special_tokens.value_or(true));
    }
    throw FormatError(
        "{}: found {}, expected a string, a list of messages, or an object with a conversation or "
        "\"text\"",
        where, json->is_object() ? "an object without them" : json->type_name());
  }

 private:
  // The line as JSON; nothing when it stands for itself.
  std::optional<Json> read_json(const std::string& line, const std::string& where) const {
    if (config_.input == config::LineKind::kText) return std::nullopt;
    // As the rows of a data set.
    if (config_.input == config::LineKind::kJson) return parse_json_exactly(line, where);
    const size_t first = line.find_first_not_of(" \t");
    if (first == std::string::npos || (line[first] != '{' && line[first] != '[')) {
      return std::nullopt;
    }
    Json json;
    try {
      json = parse_json_exactly(line, where);
    } catch (const FormatError& error) {
      if (!names_messages(line)) return std::nullopt;
      throw FormatError("{}; pass --input text if it is no conversation", error.what());
    }
    const bool is_list = json.is_array() && !json.empty() && json[0].is_object() &&
                         (json[0].contains("role") || json[0].contains("from"));
    if (is_list || data::is_conversation(json)) return json;
    return std::nullopt;
  }

  // A list of messages as a row, under the name that its form has.
  static Json conversation_of(Json list) {
    const bool is_share_gpt = !list.empty() && list[0].is_object() && list[0].contains("from");
    return {{is_share_gpt ? "conversations" : "messages", std::move(list)}};
  }

  // Whether a line that is no JSON was meant to be a conversation.
  static bool names_messages(const std::string& line) {
    return std::ranges::any_of(
        std::array{"\"messages\"", "\"role\"", "\"content\"", "\"conversations\""},
        [&](const char* key) { return line.find(key) != line.npos; });
  }

  Json encode(const std::string& text, bool add_special_tokens) const {
    text::Tokenizer::FittedTokens encoded;
    if (config_.file_lengths) {
      encoded = tokenizer_->encode_to_length(text, add_special_tokens);
    } else {
      encoded.tokens = tokenizer_->encode_with_ranges(text, add_special_tokens);
    }
    const CharacterCounter characters(text);
    Json ids = Json::array(), tokens = Json::array(), offsets = Json::array();
    for (const text::Token& token : encoded.tokens) {
      ids.push_back(token.id);
      tokens.push_back(tokenizer_->id_to_token(token.id));
      offsets.push_back(Json::array({characters[token.begin], characters[token.end]}));
    }
    Json answer = {
        {"ids", std::move(ids)}, {"tokens", std::move(tokens)}, {"offsets", std::move(offsets)}};
    if (config_.file_lengths) answer["attention_mask"] = std::move(encoded.attention);
    return answer;
  }

  // As training reads such a row; other members are variables of the template.
  Json encode_chat(Json fields, int64_t number) const {
    const data::Row row{.fields = std::move(fields), .file = input_name_, .line = number};
    if (!template_) {
      throw ConfigError(
          "{}: found a conversation, expected a tokenizer with a chat template; pass "
          "--chat_template_path or --chat_template_format",
          row.where());
    }
    const Json messages = data::read_whole_conversation(row);
    Json extra = Json::object();
    bool prompts = config_.add_generation_prompt;
    for (const auto& [key, value] : row.fields.items()) {
      if (key == "add_generation_prompt" && value.is_boolean()) {
        prompts = value.get<bool>();
      } else if (!is_column(key)) {
        extra[key] = value;
      }
    }
    extra.update(data::template_variables(row));
    std::string text;
    try {
      text = template_->render(messages, tokenizer_->specials(), prompts, extra).text;
    } catch (const FormatError& error) {
      throw FormatError("{}: {}", row.where(), error.what());
    }
    Json result = {{"text", text}};
    result.update(encode(text, config_.add_special_tokens.value_or(false)));
    return result;
  }

  // What conversations are made of.
  static bool is_column(const std::string& key) {
    constexpr std::array kColumns = {
        "messages", "conversations", "system",  "prompt", "completion",          "instruction",
        "input",    "output",        "history", "tools",  "chat_template_kwargs"};
    return std::ranges::find(kColumns, key) != kColumns.end();
  }

  Json decode(const Json& json, const std::string& where) const {
    const Json* list = &json;
    if (json.is_object() && json.contains("ids")) list = &json["ids"];
    std::vector<int32_t> ids;
    if (!list->is_array()) {
      throw FormatError("{}: found {}, expected a list of ids or an object with \"ids\"", where,
                        json.type_name());
    }
    for (const Json& id : *list) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
        throw FormatError("{}: found {} among the ids, expected token ids", where, id.dump());
      }
      ids.push_back(id.get<int32_t>());
      if (has_token(ids.back())) continue;
      throw FormatError(
          "{}: found id {}, which no token has, expected ids below {}; these ids belong to another "
          "tokenizer",
          where, ids.back(), tokenizer_->vocab_size());
    }
    return {{"text", tokenizer_->decode(ids, config_.skip_special_tokens)}};
  }

  bool has_token(int32_t id) const {
    if (id >= tokenizer_->vocab_size()) return false;
    const std::string& token = tokenizer_->id_to_token(id);
    return !token.empty() || tokenizer_->token_to_id("") == id;
  }

  const config::TokenizeConfig config_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::optional<text::ChatTemplate> template_;
  const std::shared_ptr<const std::string> input_name_ =
      std::make_shared<const std::string>("standard input");
};

}  // namespace

int run_tokenize(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}{}", kUsage,
               config::flags_help(config::tokenize_settings_table(), help_columns()));
    return 0;
  }
  config::RunConfig config;
  for (const config::Given& given :
       read_command_flags(config::tokenize_settings_table(), "tokenize", arguments)) {
    config::assign(given, config);
  }
  if (config.tokenize.model_name_or_path.empty()) {
    throw ConfigError("model: found nothing, expected a folder with a tokenizer; add --model DIR");
  }
  const TokenizeCommand command(config.tokenize);
  std::ios::sync_with_stdio(false);
  const bool shows_escapes = ::isatty(STDOUT_FILENO) == 1;
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    const Json answer = command.answer(line, number);
    std::string text = dump_python(answer, /*indent=*/-1, /*sort_keys=*/false,
                                   /*ensure_ascii=*/false);
    if (shows_escapes) text = visible(text);
    text += '\n';
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
      throw IoError("standard output: found an error while writing, expected room for the output");
    }
  }
  std::fflush(stdout);
  return 0;
}

}  // namespace strata::cli
