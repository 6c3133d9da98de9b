// The rules of transformers 5.23: models/auto/tokenization_auto.py and the constructors of the
// classes named here.
#include "strata/text/class_rules.h"

#include <algorithm>
#include <map>
#include <set>

#include "strata/base/error.h"
#include "strata/text/component_json.h"
#include "strata/text/split_fast.h"

namespace strata::text {
namespace {

const std::string kFileAsIs = "TokenizersBackend";

// The class that transformers registers for a model type; llama has none.
std::string registered_class(const std::string& model_type) {
  static const std::map<std::string, std::string> classes = {
      {"gpt2", "GPT2Tokenizer"},
      {"gpt_neo", "GPT2Tokenizer"},
      {"gptj", "GPT2Tokenizer"},
      {"phi", "GPT2Tokenizer"},
      {"starcoder2", "GPT2Tokenizer"},
      {"opt", "GPT2Tokenizer"},
      {"codegen", "GPT2Tokenizer"},
      {"qwen2", "Qwen2Tokenizer"},
      {"qwen2_moe", "Qwen2Tokenizer"},
      {"qwen3", "Qwen2Tokenizer"},
      {"qwen3_moe", "Qwen2Tokenizer"},
      {"gpt_neox", "GPTNeoXTokenizer"},
      {"olmo", "GPTNeoXTokenizer"},
      {"gpt_bigcode", kFileAsIs},
      {"phi3", kFileAsIs},
      {"olmo2", kFileAsIs},
      {"mistral", kFileAsIs},
      {"mixtral", kFileAsIs},
      {"stablelm", kFileAsIs},
      {"granite", kFileAsIs},
      {"gemma", "GemmaTokenizer"},
      {"gemma2", "GemmaTokenizer"},
      {"gemma3", "GemmaTokenizer"},
      {"cohere", "CohereTokenizer"},
      {"roberta", "RobertaTokenizer"},
      {"t5", "T5Tokenizer"},
      {"bert", "BertTokenizer"},
  };
  const auto it = classes.find(model_type);
  return it == classes.end() ? "" : it->second;
}

// Model types whose published tokenizer_class is known to be wrong: the registered one counts.
bool has_wrong_declared_class(const std::string& model_type) {
  return model_type == "qwen2" || model_type == "phi3" || model_type == "phimoe" ||
         model_type == "nemotron" || model_type == "minicpm3" || model_type == "internlm3" ||
         model_type == "arctic" || model_type == "jamba" || model_type == "modernbert";
}

bool is_file_as_is(const std::string& name) {
  return name == kFileAsIs || name == "PreTrainedTokenizer" || name == "PythonBackend";
}

// Classes with a constructor of their own that apply_class_rules does not know.
bool builds_unknown_pipeline(const std::string& name) {
  static const std::set<std::string> names = {
      "AlbertTokenizer",     "BarthezTokenizer",   "BertTokenizer",        "BigBirdTokenizer",
      "BlenderbotTokenizer", "CamembertTokenizer", "CLIPTokenizer",        "CodeLlamaTokenizer",
      "CodeGenTokenizer",    "CohereTokenizer",    "DebertaTokenizer",     "DebertaV2Tokenizer",
      "FunnelTokenizer",     "GemmaTokenizer",     "HerbertTokenizer",     "LayoutLMv2Tokenizer",
      "LayoutLMv3Tokenizer", "LayoutXLMTokenizer", "LukeTokenizer",        "MBartTokenizer",
      "MBart50Tokenizer",    "MPNetTokenizer",     "NllbTokenizer",        "NougatTokenizer",
      "OpenAIGPTTokenizer",  "PegasusTokenizer",   "Qwen3_5Tokenizer",     "ReformerTokenizer",
      "RemBertTokenizer",    "RobertaTokenizer",   "SeamlessM4TTokenizer", "SplinterTokenizer",
      "T5Tokenizer",         "UdopTokenizer",      "WhisperTokenizer",     "XGLMTokenizer",
      "XLMRobertaTokenizer", "XLNetTokenizer",
  };
  return names.contains(name);
}

std::string read_string(const Json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

std::string choose_class(const Json& tokenizer_config, const Json& model_config,
                         const Json& document) {
  std::string declared = read_string(tokenizer_config, "tokenizer_class");
  if (declared.empty()) declared = read_string(model_config, "tokenizer_class");
  if (declared.ends_with("Fast")) declared.resize(declared.size() - 4);
  const std::string model_type = read_string(model_config, "model_type");
  const std::string registered = registered_class(model_type);
  const bool is_wrong = has_wrong_declared_class(model_type);
  if (declared == "LlamaTokenizer" && !is_wrong &&
      document.dump().find("\"ByteLevel\"") != std::string::npos) {
    return kFileAsIs;
  }
  if (declared.empty()) return registered.empty() ? kFileAsIs : registered;
  if (registered.empty() || registered == declared) return declared;
  if (is_file_as_is(registered)) return kFileAsIs;
  return is_wrong ? registered : declared;
}

bool config_flag(const Json& config, const char* key, bool fallback) {
  if (!config.is_object()) return fallback;
  const auto it = config.find(key);
  return it != config.end() && it->is_boolean() ? it->get<bool>() : fallback;
}

Json byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

void use_llama_pipeline(const Json& config, Json& document) {
  const bool has_prefix = config_flag(config, "add_prefix_space", true);
  const char* scheme = !has_prefix                            ? "never"
                       : config_flag(config, "legacy", false) ? "always"
                                                              : "first";
  document["normalizer"] = nullptr;
  document["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", false}};
  Json decoders = Json::array();
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}});
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (has_prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  document["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
}

// The BPE model that a class builds: nothing of the file's options but vocabulary and merges.
void use_plain_bpe(Json& document, bool is_llama, const std::string& subject) {
  Json& model = document["model"];
  const std::string type = read_string(model, "type");
  if (!type.empty() && type != "BPE") throw_unsupported(type, subject + ": model", "BPE");
  model = {{"type", "BPE"}, {"fuse_unk", is_llama}, {"byte_fallback", is_llama}};
}

}  // namespace

bool apply_class_rules(const Json& tokenizer_config, const Json& model_config, Json& document,
                       const std::string& subject) {
  const std::string name = choose_class(tokenizer_config, model_config, document);
  const bool has_prefix = config_flag(tokenizer_config, "add_prefix_space", false);
  if (name == "LlamaTokenizer") {
    use_llama_pipeline(tokenizer_config, document);
  } else if (name == "GPT2Tokenizer" || name == "GPTNeoXTokenizer") {
    const bool is_neox = name == "GPTNeoXTokenizer";
    document["normalizer"] = is_neox ? Json{{"type", "NFC"}} : Json(nullptr);
    document["pre_tokenizer"] = byte_level(has_prefix, true);
    document["decoder"] = byte_level(true, true);
    if (is_neox) document["post_processor"] = nullptr;
  } else if (name == "Qwen2Tokenizer") {
    document["normalizer"] = {{"type", "NFC"}};
    Json steps = Json::array();
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", std::string(kQwen2Pattern)}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
    steps.push_back(byte_level(has_prefix, false));
    document["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    document["decoder"] = byte_level(true, true);
  } else if (builds_unknown_pipeline(name)) {
    throw FormatError(
        "{}: found tokenizer_class \"{}\", expected one of TokenizersBackend, "
        "PreTrainedTokenizerFast, LlamaTokenizer, GPT2Tokenizer, GPTNeoXTokenizer, Qwen2Tokenizer",
        subject, name);
  } else {
    return false;
  }
  use_plain_bpe(document, name == "LlamaTokenizer", subject);
  return true;
}

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

// Settings with special_tokens_map.json laid over them.
Json merged_settings(const TokenFiles& files) {
  Json settings = files.tokenizer_config.is_object() ? files.tokenizer_config : Json::object();
  if (!settings.contains("added_tokens_decoder") && files.special_tokens_map.is_object()) {
    for (const auto& [key, value] : files.special_tokens_map.items()) settings[key] = value;
  }
  return settings;
}

void apply_default_specials(const std::string& pipeline_class, Json& settings) {
  const auto set_default = [&](const char* key, const char* value) {
    if (!settings.contains(key)) settings[key] = value;
  };
  if (pipeline_class == "llama") {
    set_default("unk_token", "<unk>"), set_default("bos_token", "<s>");
    set_default("eos_token", "</s>");
  } else if (pipeline_class == "qwen2") {
    set_default("unk_token", "<|endoftext|>"), set_default("eos_token", "<|endoftext|>");
    set_default("pad_token", "<|endoftext|>");
  } else if (pipeline_class == "gpt2") {
    set_default("unk_token", "<|endoftext|>"), set_default("bos_token", "<|endoftext|>");
    set_default("eos_token", "<|endoftext|>");
  } else if (pipeline_class == "neox") {
    apply_default_specials("gpt2", settings);
    set_default("pad_token", "<|padding|>");
  }
}

// Recognises by its pipeline which class apply_class_rules chose.
std::string rebuilt_class(const Json& document) {
  const std::string type = read_string(document.at("pre_tokenizer"), "type");
  if (type == "Metaspace") return "llama";
  if (type == "Sequence") return "qwen2";
  return document.at("normalizer").is_null() ? "gpt2" : "neox";
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

void collect_specials(const Json& settings, const std::string& where, NamedTokens& out) {
  for (const auto& [key, member] : kNames) {
    const auto it = settings.find(key);
    if (it == settings.end()) continue;
    if (const auto token = read_special(*it, where)) {
      out.specials.*member = token->content;
      out.missing.push_back(*token);
    }
  }
  for (const auto& [key, value] : settings.items()) {
    if (key.ends_with("_token") && !is_standard_name(key)) {
      if (const auto token = read_special(value, where)) out.missing.push_back(*token);
    }
  }
  const bool has_new =
      settings.contains("extra_special_tokens") && !settings["extra_special_tokens"].empty();
  const auto extra = settings.find(has_new ? "extra_special_tokens" : "additional_special_tokens");
  if (extra == settings.end() || !extra->is_structured()) return;
  for (const Json& value : *extra) {
    if (const auto token = read_special(value, where)) out.missing.push_back(*token);
  }
}

}  // namespace

NamedTokens collect_tokens(const TokenFiles& files, const Json& document, bool is_rebuilt,
                           const std::string& folder) {
  const std::string where = folder + "/tokenizer_config.json";
  NamedTokens out;
  Json settings = merged_settings(files);
  const std::string rebuilt = is_rebuilt ? rebuilt_class(document) : "";
  apply_default_specials(rebuilt, settings);
  if (const auto padding = document.find("padding");
      padding != document.end() && padding->is_object() && !settings.contains("pad_token")) {
    if (padding->contains("pad_token")) settings["pad_token"] = (*padding)["pad_token"];
  }
  const bool has_map = settings.contains("added_tokens_decoder");
  if (!is_rebuilt || !has_map) {
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
    out.missing = read_legacy_added(files.added_tokens, folder + "/added_tokens.json");
  }
  collect_specials(settings, where, out);
  if (rebuilt == "qwen2") {
    for (const AddedToken& token : out.missing) {
      if (token.special)
        out.added.push_back({.content = token.content, .normalized = false, .special = true});
    }
  }
  return out;
}

}  // namespace strata::text
