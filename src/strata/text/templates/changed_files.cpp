#include "strata/text/templates/changed_files.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/base/json.h"
#include "strata/text/classes/tokenizer_class.h"
#include "strata/text/tokenizer_file.h"

namespace strata::text {
namespace {

namespace fs = std::filesystem;

Json flags_of(const AddedToken& token) {
  return {{"content", token.content},       {"single_word", token.single_word},
          {"lstrip", token.lstrip},         {"rstrip", token.rstrip},
          {"normalized", token.normalized}, {"special", token.special}};
}

// Finds values in JSON text that was parsed before, without building a tree of it: a vocabulary is
// large, and its text stays as it is.
class JsonText {
 public:
  explicit JsonText(std::string_view text) : text_(text) {}

  // Begin and end of the value of a key of the outermost object.
  std::optional<std::pair<size_t, size_t>> find(std::string_view key) {
    at_ = text_.find('{') + 1;
    while (true) {
      skip_to("\"}");
      if (at_ >= text_.size() || text_[at_] == '}') return std::nullopt;
      const size_t begin = at_ + 1;
      skip_string();
      const bool is_wanted = text_.substr(begin, at_ - begin - 1) == key;
      skip_to(":");
      at_ = text_.find_first_not_of(" \t\r\n", at_ + 1);
      const size_t value = at_;
      skip_value();
      if (is_wanted) return std::pair(value, at_);
    }
  }

 private:
  void skip_to(std::string_view characters) {
    at_ = std::min(text_.find_first_of(characters, at_), text_.size());
  }
  void skip_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) at_ += text_[at_] == '\\';
    ++at_;
  }
  void skip_value() {
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (depth == 0 && (c == ',' || c == '}')) return;
      if (c == '"') {
        skip_string();
        continue;
      }
      depth += (c == '{' || c == '[') - (c == '}' || c == ']');
      ++at_;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

// tokenizer.json with further entries at the end of added_tokens.
std::string with_added_tokens(const std::string& text, const Tokenizer& tokenizer,
                              const std::string& subject) {
  std::string entries;
  for (const auto& [token, id] : tokenizer.tokens_since_load()) {
    Json entry = {{"id", id}};
    entry.update(flags_of(token));
    entries += (entries.empty() ? "" : ", ") +
               dump_python(entry, /*indent=*/-1, /*sort_keys=*/false, /*ensure_ascii=*/false);
  }
  const auto list = JsonText(text).find("added_tokens");
  if (!list) {
    const size_t open = text.find('{') + 1;
    return text.substr(0, open) + "\"added_tokens\": [" + entries + "]," + text.substr(open);
  }
  const size_t close = text.rfind(']', list->second);
  if (text[list->first] != '[' || close == std::string::npos || close < list->first) {
    throw FormatError("{}: added_tokens: found no list, expected one", subject);
  }
  const bool is_empty = text.find('{', list->first) > close;
  return text.substr(0, close) + (is_empty ? "" : ", ") + entries + text.substr(close);
}

void name_tokens(Json& settings, const Tokenizer::Specials& specials) {
  const std::pair<const char*, const std::optional<std::string>&> names[] = {
      {"bos_token", specials.bos}, {"eos_token", specials.eos}, {"pad_token", specials.pad}};
  for (const auto& [key, token] : names) {
    if (!token) continue;
    const auto old = settings.find(key);
    const bool is_object = old != settings.end() && old->is_object() && old->contains("content");
    const Json& text = is_object ? (*old)["content"] : old != settings.end() ? *old : Json();
    if (text != Json(*token)) settings[key] = *token;
  }
}

void list_specials(Json& settings, const Tokenizer& tokenizer) {
  // Older readers take a list under this name alone.
  const char* key = settings.contains("extra_special_tokens") ? "extra_special_tokens"
                                                              : "additional_special_tokens";
  Json& list = settings[key];
  if (list.is_null()) list = Json::array();
  if (!list.is_array()) return;
  for (const auto& [token, id] : tokenizer.tokens_since_load()) {
    if (token.special) list.push_back(token.content);
  }
}

// What the tokenizer reads from the settings beside a vocabulary that holds no added tokens.
void change_settings(Json& settings, const Tokenizer& tokenizer, bool has_template) {
  if (tokenizer.specials() != tokenizer.specials_at_load()) {
    name_tokens(settings, tokenizer.specials());
  }
  if (!tokenizer.tokens_since_load().empty()) list_specials(settings, tokenizer);
  if (const auto map = settings.find("added_tokens_decoder"); map != settings.end()) {
    for (const auto& [token, id] : tokenizer.tokens_since_load()) {
      (*map)[std::to_string(id)] = flags_of(token);
    }
  }
  if (has_template) settings.erase("chat_template");
}

// The config.json beside the files; null where there is none.
Json model_config_beside(const std::map<std::string, fs::path>& files) {
  for (const auto& [name, path] : files) {
    const fs::path config = fs::path(path).replace_filename("config.json");
    if (fs::exists(config)) return read_json_file(config);
  }
  return nullptr;
}

// The class that was loaded, where `model_config` chooses another in the place of the one that was
// beside the files. The file as it is has a name that older readers know as well.
void declare_class(const std::map<std::string, fs::path>& files, const Json& model_config,
                   Json& settings) {
  const auto file = files.find("tokenizer.json");
  const bool has_file = file != files.end();
  const Json document = has_file ? read_tokenizer_file(file->second).document : Json();
  const std::string loaded = choose_tokenizer_class(settings, model_config_beside(files), document);
  if (loaded == choose_tokenizer_class(settings, model_config, document)) return;
  if (loaded != kFileAsIs) {
    settings["tokenizer_class"] = loaded;
  } else if (has_file) {
    settings["tokenizer_class"] = "PreTrainedTokenizerFast";
  }
}

}  // namespace

std::map<std::string, std::string> changed_files(const Tokenizer& tokenizer,
                                                 const std::string& chat_template,
                                                 const Json& model_config) {
  std::map<std::string, std::string> changed;
  std::map<std::string, fs::path> files;
  for (const fs::path& path : tokenizer.files()) files[path.filename().string()] = path;
  const auto keep = [&](const std::string& name, const std::string& text) {
    const auto file = files.find(name);
    if (file == files.end() || read_file(file->second) != text) changed[name] = text;
  };
  if (!chat_template.empty()) keep("chat_template.jinja", chat_template);

  constexpr const char* kSettings = "tokenizer_config.json";
  const bool has_settings = files.contains(kSettings);
  const Json before = has_settings ? read_json_file(files[kSettings]) : Json::object();
  Json after = before;
  change_settings(after, tokenizer, !chat_template.empty());
  declare_class(files, model_config, after);
  if (after != before)
    changed[kSettings] =
        dump_python(after, /*indent=*/2, /*sort_keys=*/true, /*ensure_ascii=*/false) + "\n";
  if (files.contains("special_tokens_map.json") &&
      tokenizer.specials() != tokenizer.specials_at_load()) {
    const Json old = read_json_file(files["special_tokens_map.json"]);
    Json map = old;
    name_tokens(map, tokenizer.specials());
    if (map != old)
      changed["special_tokens_map.json"] =
          dump_python(map, /*indent=*/2, /*sort_keys=*/false, /*ensure_ascii=*/false) + "\n";
  }

  const auto& added = tokenizer.tokens_since_load();
  if (added.empty()) return changed;
  if (const auto file = files.find("tokenizer.json"); file != files.end()) {
    changed["tokenizer.json"] =
        with_added_tokens(read_file(file->second), tokenizer, file->second.string());
  } else if (!after.contains("added_tokens_decoder")) {
    constexpr const char* kLegacy = "added_tokens.json";
    Json ids = files.contains(kLegacy) ? read_json_file(files[kLegacy]) : Json::object();
    for (const auto& [token, id] : added) ids[token.content] = id;
    changed[kLegacy] =
        dump_python(ids, /*indent=*/2, /*sort_keys=*/false, /*ensure_ascii=*/false) + "\n";
  }
  return changed;
}

}  // namespace strata::text
