// The named and added tokens of a folder's configuration files.
#include "strata/text/special_tokens.h"

#include <algorithm>
#include <map>

#include "strata/base/error.h"
#include "strata/text/component_json.h"

namespace strata::text {
namespace {

constexpr std::pair<const char*, std::optional<std::string> Tokenizer::Specials::*> kNames[] = {
    {"bos_token", &Tokenizer::Specials::bos},   {"eos_token", &Tokenizer::Specials::eos},
    {"unk_token", &Tokenizer::Specials::unk},   {"sep_token", &Tokenizer::Specials::sep},
    {"pad_token", &Tokenizer::Specials::pad},   {"cls_token", &Tokenizer::Specials::cls},
    {"mask_token", &Tokenizer::Specials::mask},
};

bool is_standard_name(const std::string& key) {
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](const auto& name) { return key == name.first; });
}

// "<s>" or {"content": "<s>", ...}; nothing for null and other types.
std::optional<AddedToken> read_special(const Json& value, const std::string& where) {
  AddedToken token;
  if (value.is_string()) {
    token.content = value.get<std::string>();
  } else if (value.is_object() && value.contains("content")) {
    token = read_added_token(value, where);
  } else {
    return std::nullopt;
  }
  if (value.is_string()) token.normalized = false;
  token.special = true;
  return token;
}

std::vector<AddedToken> read_decoder_map(const Json& map, const std::string& where) {
  std::map<int64_t, AddedToken> by_id;
  for (const auto& [id, token] : map.items()) {
    if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos) {
      throw FormatError("{}: found \"{}\" in added_tokens_decoder, expected a token id", where, id);
    }
    by_id[std::stoll(id)] = read_added_token(token, where + ": added_tokens_decoder");
  }
  std::vector<AddedToken> tokens;
  for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
  return tokens;
}

// added_tokens.json: {"<tool>": 32000}. Only tokens that tokenizer.json does not have matter.
std::vector<AddedToken> read_legacy_added(const Json& map, const std::string& where) {
  std::map<int64_t, AddedToken> by_id;
  for (const auto& [content, id] : map.items()) {
    if (!id.is_number_integer()) {
      throw FormatError("{}: found id {} for \"{}\", expected an integer", where, id.dump(),
                        content);
    }
    by_id[id.get<int64_t>()].content = content;
  }
  std::vector<AddedToken> tokens;
  for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
  return tokens;
}

// Whether special_tokens_map.json counts.
bool counts_map(const TokenFiles& files) {
  return !files.tokenizer_config.contains("added_tokens_decoder") &&
         files.special_tokens_map.is_object();
}

void collect_specials(const Json& settings, const std::string& where, NamedTokens& out) {
  for (const auto& [key, member] : kNames) {
    const auto it = settings.find(key);
    if (it == settings.end()) continue;
    if (const auto token = read_special(*it, where)) {
      out.specials.*member = token->content;
      out.specials_to_add.push_back(*token);
    }
  }
}

bool is_own_name(const std::string& key) {
  return key.ends_with("_token") && !is_standard_name(key);
}

// What `from` has of names, laid over `names`.
void lay_over(Json& names, const Json& from) {
  if (!from.is_object()) return;
  for (const auto& [key, value] : from.items()) names[key] = value;
}

// The names that only this model has, as transformers collects them: texts under ..._token and the
// object extra_special_tokens take the place of model_specific_special_tokens, and tokens that are
// objects or stand in special_tokens_map.json are found beside those.
Json own_names(const TokenFiles& files, const Json& settings) {
  const Json config = files.tokenizer_config.is_object() ? files.tokenizer_config : Json::object();
  const Json map = counts_map(files) ? files.special_tokens_map : Json::object();
  Json listed = Json::object();
  for (const auto& [key, value] : config.items()) {
    if (is_own_name(key) && value.is_string()) listed[key] = value;
  }
  lay_over(listed, config.value("extra_special_tokens", Json()));
  if (listed.empty()) lay_over(listed, config.value("model_specific_special_tokens", Json()));
  lay_over(listed, map.value("extra_special_tokens", Json()));
  Json names = Json::object();
  for (const auto& [key, value] : settings.items()) {  // those of the class
    if (is_own_name(key) && !config.contains(key) && !map.contains(key)) names[key] = value;
  }
  for (const auto& [key, value] : config.items()) {
    const bool is_token = value.is_object() && value.value("__type", Json()) == "AddedToken";
    if (is_own_name(key) && is_token) names[key] = value;
  }
  for (const auto& [key, value] : map.items()) {
    if (is_own_name(key)) names[key] = value;
  }
  lay_over(names, listed);
  return names;
}

void collect_own_specials(const TokenFiles& files, const Json& settings, const std::string& where,
                          NamedTokens& out) {
  const Json names = own_names(files, settings);
  for (const auto& [key, value] : names.items()) {
    const auto token = read_special(value, where);
    if (!token) continue;
    const auto standard = std::ranges::find(
        kNames, key, [](const auto& name) { return std::string_view(name.first); });
    if (standard != std::end(kNames)) {
      out.specials.*standard->second = token->content;
    } else {
      out.specials.own.emplace_back(key, token->content);
    }
    out.specials_to_add.push_back(*token);
  }
}

// extra_special_tokens as a list stands for all others, as an object (which names tokens) beside
// additional_special_tokens; an empty one gives way to those that the files name.
void collect_more_specials(const Json& given, const Json& settings, const std::string& where,
                           NamedTokens& out) {
  const auto add_all = [&](const Json& list) {
    if (!list.is_structured()) return;
    for (const Json& value : list) {
      auto token = read_special(value, where);
      if (!token) continue;
      const bool is_named = std::ranges::any_of(
          kNames, [&](const auto& name) { return out.specials.*name.second == token->content; });
      if (value.is_object() && !is_named) token->special = value.value("special", true);
      out.specials_to_add.push_back(*token);
    }
  };
  const Json extra = given.value("extra_special_tokens", Json());
  const char* old_key = "additional_special_tokens";
  const bool stands_alone = extra.is_array() && !(extra.empty() && given.contains(old_key));
  add_all(stands_alone ? extra : settings.value(old_key, Json()));
}

// Whether a special token is the class's own, which the settings do not name.
bool is_default(const std::string& content, const Json& given, const ClassRules& rules) {
  return std::any_of(std::begin(kNames), std::end(kNames), [&](const auto& name) {
    const auto value = rules.default_specials.find(name.first);
    if (value == rules.default_specials.end() || given.contains(name.first)) return false;
    return value->is_object() ? value->at("content") == content : *value == content;
  });
}

// Adds special tokens once more, as the class does.
void readd(const Json& given, const ClassRules& rules, NamedTokens& out) {
  if (rules.readds == ClassRules::Readds::kNone) return;
  for (AddedToken& token : out.specials_to_add) {
    token.special = true;
    if (rules.readds == ClassRules::Readds::kAll) {
      out.added.push_back({.content = token.content, .normalized = false, .special = true});
    } else if (is_default(token.content, given, rules)) {
      out.added.push_back(token);
    }
  }
}

}  // namespace

Json merged_settings(const TokenFiles& files) {
  Json settings = files.tokenizer_config.is_object() ? files.tokenizer_config : Json::object();
  if (counts_map(files)) lay_over(settings, files.special_tokens_map);
  return settings;
}

NamedTokens collect_tokens(const TokenFiles& files, const Json& document, const ClassRules& rules,
                           const std::string& folder) {
  const std::string where = folder + "/tokenizer_config.json";
  NamedTokens out;
  const Json given = merged_settings(files);
  Json settings = given;
  for (const auto& [key, value] : rules.default_specials.items()) {
    if (!settings.contains(key)) settings[key] = value;
  }
  if (const auto padding = document.find("padding");
      padding != document.end() && padding->is_object() && !settings.contains("pad_token")) {
    if (padding->contains("pad_token")) settings["pad_token"] = (*padding)["pad_token"];
  }
  const bool has_map = settings.contains("added_tokens_decoder");
  if (rules.name.empty() || !has_map) {
    if (const auto added = document.find("added_tokens"); added != document.end()) {
      for (const Json& token : *added) {
        out.added.push_back(read_added_token(token, folder + "/tokenizer.json: added_tokens"));
      }
    }
  }
  if (has_map) {
    for (AddedToken& token : read_decoder_map(settings["added_tokens_decoder"], where)) {
      out.added.push_back(std::move(token));
    }
  } else if (files.added_tokens.is_object()) {
    out.legacy = read_legacy_added(files.added_tokens, folder + "/added_tokens.json");
  }
  collect_specials(settings, where, out);
  collect_own_specials(files, settings, where, out);
  collect_more_specials(given, settings, where, out);
  readd(given, rules, out);
  return out;
}

}  // namespace strata::text
