// Byte vocabularies with ranks: tiktoken's lines "base64 rank" and Mistral's tekken.json. A merge
// of two tokens has the rank of what it makes.
#include <algorithm>
#include <unordered_map>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/text/base64.h"
#include "strata/text/byte_level.h"
#include "strata/text/component_json.h"
#include "strata/text/split_fast.h"
#include "strata/text/vocabulary_files.h"

namespace strata::text {
namespace {

// `tokens` by rank; ids begin at `first_id`.
void add_byte_vocabulary(const std::vector<std::string>& tokens, int64_t first_id,
                         TokenizerFile& file) {
  std::unordered_map<std::string_view, size_t> ranks;
  for (size_t rank = 0; rank < tokens.size(); ++rank) ranks.emplace(tokens[rank], rank);
  std::vector<std::pair<size_t, size_t>> ways;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    const std::string_view token = tokens[rank];
    file.vocab.emplace_back(bytes_to_characters(token), first_id + static_cast<int64_t>(rank));
    ways.clear();
    for (size_t i = 1; i < token.size(); ++i) {
      const auto left = ranks.find(token.substr(0, i)), right = ranks.find(token.substr(i));
      if (left != ranks.end() && right != ranks.end())
        ways.emplace_back(left->second, right->second);
    }
    std::sort(ways.begin(), ways.end());
    for (const auto& [left, right] : ways) {
      file.merges.emplace_back(bytes_to_characters(tokens[left]),
                               bytes_to_characters(tokens[right]));
    }
  }
  file.has_vocab = file.has_merges = true;
}

void add_pipeline(const std::string& pattern, Json& document) {
  document["model"] = {{"type", "BPE"}, {"ignore_merges", true}};
  Json steps = Json::array();
  steps.push_back({{"type", "Split"},
                   {"pattern", {{"Regex", pattern}}},
                   {"behavior", "Isolated"},
                   {"invert", false}});
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  document["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  document["decoder"] = {{"type", "ByteLevel"}};
  document["post_processor"] = {{"type", "ByteLevel"}, {"trim_offsets", false}};
  document["added_tokens"] = Json::array();
}

void add_special(const std::string& content, Json& document) {
  document["added_tokens"].push_back(
      {{"content", content}, {"special", true}, {"normalized", false}});
}

std::vector<std::string> read_lines(const std::filesystem::path& path) {
  const std::string text = read_file(path), subject = path.string();
  std::vector<std::string> tokens;
  int line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view row(text.data() + begin, end - begin);
    begin = end + 1;
    ++line;
    if (row.empty()) continue;
    const size_t space = row.find(' ');
    if (space == std::string_view::npos || row.substr(space + 1) != std::to_string(tokens.size())) {
      throw FormatError("{}:{}: found \"{}\", expected a token in base64 and its rank {}", subject,
                        line, row.substr(0, 60), tokens.size());
    }
    tokens.push_back(decode_base64(row.substr(0, space), fmt::format("{}:{}", subject, line)));
  }
  return tokens;
}

// Special tokens after the vocabulary: those of added_tokens_decoder by id, with names for the
// gaps, then extra_special_tokens.
void add_config_specials(const Json& config, int64_t base_size, Json& document) {
  if (!config.is_object()) return;
  std::vector<std::string> contents;
  const Json listed = config.value("added_tokens_decoder", Json::object());
  for (const auto& [id, token] : listed.items()) {
    const int64_t at = std::strtoll(id.c_str(), nullptr, 10) - base_size;
    if (at < 0) continue;
    if (at > 1'000'000)
      throw FormatError(
          "added_tokens_decoder: found id {}, expected one near the "
          "vocabulary's end {}",
          id, base_size);
    if (at >= static_cast<int64_t>(contents.size())) contents.resize(at + 1);
    contents[at] = token.is_object() ? token.value("content", "") : "";
  }
  for (size_t i = 0; i < contents.size(); ++i) {
    if (contents[i].empty()) contents[i] = fmt::format("<|reserved_token_{}|>", base_size + i);
  }
  const Json extras = config.value("extra_special_tokens", Json::array());
  for (const Json& extra : extras) {
    if (!extra.is_string()) continue;
    const auto text = extra.get<std::string>();
    if (std::find(contents.begin(), contents.end(), text) == contents.end()) {
      contents.push_back(text);
    }
  }
  for (const std::string& content : contents) add_special(content, document);
}

// Names of the special tokens of files that do not list them.
constexpr const char* kOldTekkenSpecials[] = {"<unk>",
                                              "<s>",
                                              "</s>",
                                              "[INST]",
                                              "[/INST]",
                                              "[AVAILABLE_TOOLS]",
                                              "[/AVAILABLE_TOOLS]",
                                              "[TOOL_RESULTS]",
                                              "[/TOOL_RESULTS]",
                                              "[TOOL_CALLS]",
                                              "[IMG]",
                                              "<pad>",
                                              "[IMG_BREAK]",
                                              "[IMG_END]",
                                              "[PREFIX]",
                                              "[MIDDLE]",
                                              "[SUFFIX]",
                                              "[SYSTEM_PROMPT]",
                                              "[/SYSTEM_PROMPT]",
                                              "[TOOL_CONTENT]"};

std::vector<std::string> tekken_specials(const Json& json, const std::string& subject) {
  const auto listed = json.find("special_tokens");
  if (listed == json.end() || listed->is_null()) {
    return {std::begin(kOldTekkenSpecials), std::end(kOldTekkenSpecials)};
  }
  std::vector<std::pair<int64_t, std::string>> ranked;
  for (const Json& token : *listed) {
    const std::string where = subject + ": special_tokens";
    ranked.emplace_back(int_field(token, "rank", -1, where),
                        required_string(token, "token_str", where));
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> specials;
  for (auto& [rank, text] : ranked) {
    if (rank != static_cast<int64_t>(specials.size())) {
      throw FormatError("{}: found rank {} of special token \"{}\", expected {}", subject, rank,
                        text, specials.size());
    }
    specials.push_back(std::move(text));
  }
  return specials;
}

}  // namespace

TokenizerFile read_tiktoken_file(const std::filesystem::path& path, const Json& tokenizer_config) {
  TokenizerFile file{.subject = path.string()};
  file.document = Json::object();
  add_pipeline(std::string(kLlama3Pattern), file.document);
  const std::vector<std::string> tokens = read_lines(path);
  add_byte_vocabulary(tokens, 0, file);
  add_config_specials(tokenizer_config, static_cast<int64_t>(tokens.size()), file.document);
  return file;
}

TokenizerFile read_tekken_file(const std::filesystem::path& path) {
  TokenizerFile file{.subject = path.string()};
  const Json json = read_json_file(path);
  const Json& config = require_field(json, "config", file.subject);
  const std::string where = file.subject + ": config";
  std::vector<std::string> specials = tekken_specials(json, file.subject);
  const int64_t num_specials =
      int_field(config, "default_num_special_tokens", static_cast<int64_t>(specials.size()), where);
  const Json& entries = require_field(json, "vocab", file.subject);
  int64_t num_tokens = int_field(config, "default_vocab_size", INT64_MAX, where);
  if (num_tokens != INT64_MAX) num_tokens -= num_specials;
  std::vector<std::string> tokens;
  for (const Json& entry : entries) {
    if (static_cast<int64_t>(tokens.size()) >= num_tokens) break;
    const std::string place = fmt::format("{}: vocab[{}]", file.subject, tokens.size());
    tokens.push_back(decode_base64(required_string(entry, "token_bytes", place), place));
  }
  while (static_cast<int64_t>(specials.size()) < num_specials) {
    specials.push_back(fmt::format("<SPECIAL_{}>", specials.size()));
  }
  file.document = Json::object();
  add_pipeline(required_string(config, "pattern", where), file.document);
  for (size_t id = 0; id < specials.size(); ++id) {
    file.vocab.emplace_back(specials[id], id);
    add_special(specials[id], file.document);
  }
  add_byte_vocabulary(tokens, num_specials, file);
  file.document["default_specials"] = {
      {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", "<pad>"}, {"unk_token", "<unk>"}};
  return file;
}

}  // namespace strata::text
