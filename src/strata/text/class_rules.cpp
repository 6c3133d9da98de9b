// The constructors of the tokenizer classes of transformers 5.23.
#include "strata/text/class_rules.h"

#include <set>

#include "strata/base/error.h"
#include "strata/text/component_json.h"
#include "strata/text/split_fast.h"

namespace strata::text {
namespace {

// Classes with a constructor of their own that is not written down here.
bool builds_unknown_pipeline(const std::string& name) {
  static const std::set<std::string> names = {
      "AlbertTokenizer",     "DebertaV2Tokenizer",   "BarthezTokenizer",   "BigBirdTokenizer",
      "BlenderbotTokenizer", "CamembertTokenizer",   "CLIPTokenizer",      "CodeGenTokenizer",
      "CohereTokenizer",     "DebertaTokenizer",     "FunnelTokenizer",    "HerbertTokenizer",
      "LayoutLMv2Tokenizer", "LayoutLMv3Tokenizer",  "LayoutXLMTokenizer", "LukeTokenizer",
      "MBartTokenizer",      "MBart50Tokenizer",     "NllbTokenizer",      "NougatTokenizer",
      "OpenAIGPTTokenizer",  "PegasusTokenizer",     "Qwen3_5Tokenizer",   "ReformerTokenizer",
      "RemBertTokenizer",    "SeamlessM4TTokenizer", "SplinterTokenizer",  "UdopTokenizer",
      "WhisperTokenizer",    "XGLMTokenizer",        "XLNetTokenizer",
  };
  return names.contains(name);
}

bool config_flag(const Json& config, const char* key, bool fallback) {
  if (!config.is_object()) return fallback;
  const auto it = config.find(key);
  return it != config.end() && it->is_boolean() ? it->get<bool>() : fallback;
}

std::string model_type_of(const Json& document) {
  const Json& model = document.at("model");
  const auto type = model.find("type");
  return type != model.end() && type->is_string() ? type->get<std::string>() : "";
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

void require_model(const char* type, const Json& document, const std::string& subject) {
  const std::string found = model_type_of(document);
  if (!found.empty() && found != type) throw_unsupported(found, subject + ": model", type);
}

// The BPE model that a class builds: nothing of the file's options but vocabulary and merges.
void use_bpe(Json& document, bool is_sentence_piece, const std::string& subject) {
  require_model("BPE", document, subject);
  document["model"] = {
      {"type", "BPE"}, {"fuse_unk", is_sentence_piece}, {"byte_fallback", is_sentence_piece}};
}

void use_unigram(Json& document, int unk_id, const std::string& subject) {
  require_model("Unigram", document, subject);
  Json& model = document["model"];
  Json vocab = std::move(model["vocab"]);
  model = {{"type", "Unigram"}, {"unk_id", unk_id}, {"byte_fallback", false}};
  model["vocab"] = std::move(vocab);
}

// The Precompiled step of the file's normalizer, or null.
Json precompiled_of(const Json& document) {
  const auto it = document.find("normalizer");
  if (it == document.end() || !it->is_object()) return nullptr;
  if (it->value("type", "") == "Precompiled") return *it;
  const Json steps = it->value("normalizers", Json::array());
  for (const Json& step : steps) {
    if (step.is_object() && step.value("type", "") == "Precompiled") return step;
  }
  return nullptr;
}

Json metaspace(const char* scheme) {
  return {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", true}};
}

// Unigram over words: T5 and XLM-R.
void use_sentence_words(Json& document, const char* scheme) {
  document["normalizer"] = precompiled_of(document);
  Json steps = Json::array();
  steps.push_back({{"type", "WhitespaceSplit"}});
  steps.push_back(metaspace(scheme));
  document["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  document["decoder"] = metaspace(scheme);
}

void use_bert(const Json& config, Json& document, const std::string& subject) {
  require_model("WordPiece", document, subject);
  const auto accents = config.is_object() ? config.find("strip_accents") : config.end();
  const bool has_accents = config.is_object() && accents != config.end();
  document["normalizer"] = {
      {"type", "BertNormalizer"},
      {"clean_text", true},
      {"handle_chinese_chars", config_flag(config, "tokenize_chinese_chars", true)},
      {"strip_accents", has_accents ? *accents : Json(nullptr)},
      {"lowercase", config_flag(config, "do_lower_case", true)}};
  document["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  document["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  const std::string unk =
      config.is_object() && config.contains("unk_token") && config["unk_token"].is_string()
          ? config["unk_token"].get<std::string>()
          : "[UNK]";
  document["model"] = {{"type", "WordPiece"}, {"unk_token", unk}};
}

void use_gemma(Json& document, const std::string& subject) {
  use_bpe(document, /*is_sentence_piece=*/true, subject);
  document["model"]["unk_token"] = "<unk>";
  document["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  document["pre_tokenizer"] = {{"type", "Split"},
                               {"pattern", {{"String", " "}}},
                               {"behavior", "MergedWithPrevious"},
                               {"invert", false}};
  Json decoders = Json::array();
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}});
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  document["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
}

// A template with named tokens before and after the text.
Json ends(const char* before, const char* after) {
  Json single = Json::array();
  Json specials = Json::object();
  const auto add = [&](const char* name) {
    single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
    specials[name] = {{"id", name}, {"ids", Json::array({name})}, {"tokens", Json::array({name})}};
  };
  if (before != nullptr) add(before);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (after != nullptr) add(after);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", specials}};
}

Json roberta_ends(bool has_prefix, bool trims) {
  return {{"type", "RobertaProcessing"},
          {"sep", Json::array({"sep", "sep_token"})},
          {"cls", Json::array({"cls", "cls_token"})},
          {"trim_offsets", trims},
          {"add_prefix_space", has_prefix}};
}

const Json& sentence_specials() {  // of RoBERTa and its relatives
  static const Json specials = {
      {"bos_token", "<s>"},   {"eos_token", "</s>"},  {"sep_token", "</s>"},   {"cls_token", "<s>"},
      {"unk_token", "<unk>"}, {"pad_token", "<pad>"}, {"mask_token", "<mask>"}};
  return specials;
}

Json t5_specials() {
  Json specials = {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
  Json extra = Json::array();
  for (int i = 0; i < 100; ++i) extra.push_back(fmt::format("<extra_id_{}>", i));
  specials["additional_special_tokens"] = extra;
  return specials;
}

const Json& llama_specials() {
  static const Json specials = {
      {"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
  return specials;
}

void use_byte_level_words(ClassRules& rules, bool has_prefix, Json& document,
                          const std::string& subject) {
  const bool is_neox = rules.name == "GPTNeoXTokenizer";
  use_bpe(document, /*is_sentence_piece=*/false, subject);
  document["normalizer"] = is_neox ? Json{{"type", "NFC"}} : Json(nullptr);
  document["pre_tokenizer"] = byte_level(has_prefix, true);
  document["decoder"] = byte_level(true, true);
  if (is_neox) document["post_processor"] = nullptr;
  if (rules.name == "RobertaTokenizer") {
    rules.default_specials = sentence_specials();
    rules.post_processor = roberta_ends(has_prefix, /*trims=*/true);
    return;
  }
  rules.default_specials = {{"unk_token", "<|endoftext|>"},
                            {"bos_token", "<|endoftext|>"},
                            {"eos_token", "<|endoftext|>"}};
  if (is_neox) rules.default_specials["pad_token"] = "<|padding|>";
}

void use_qwen2(ClassRules& rules, bool has_prefix, Json& document, const std::string& subject) {
  use_bpe(document, /*is_sentence_piece=*/false, subject);
  document["normalizer"] = {{"type", "NFC"}};
  Json steps = Json::array();
  steps.push_back({{"type", "Split"},
                   {"pattern", {{"Regex", std::string(kQwen2Pattern)}}},
                   {"behavior", "Isolated"},
                   {"invert", false}});
  steps.push_back(byte_level(has_prefix, false));
  document["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  document["decoder"] = byte_level(true, true);
  rules.default_specials = {{"unk_token", "<|endoftext|>"},
                            {"eos_token", "<|endoftext|>"},
                            {"pad_token", "<|endoftext|>"}};
}

bool use_word_models(ClassRules& rules, const Json& config, Json& document,
                     const std::string& subject) {
  if (rules.name == "BertTokenizer" || rules.name == "MPNetTokenizer") {
    use_bert(config, document, subject);
    const bool is_bert = rules.name == "BertTokenizer";
    rules.default_specials = sentence_specials();
    rules.default_specials["unk_token"] = "[UNK]";
    if (is_bert) {
      rules.default_specials = {{"unk_token", "[UNK]"},
                                {"sep_token", "[SEP]"},
                                {"pad_token", "[PAD]"},
                                {"cls_token", "[CLS]"},
                                {"mask_token", "[MASK]"}};
    }
    rules.post_processor = is_bert ? ends("cls_token", "sep_token") : roberta_ends(false, true);
    return true;
  }
  if (rules.name == "T5Tokenizer") {
    use_unigram(document, /*unk_id=*/2, subject);
    use_sentence_words(document, "always");
    rules.default_specials = t5_specials();
    rules.post_processor = ends(nullptr, "eos_token");
    return true;
  }
  if (rules.name == "XLMRobertaTokenizer") {
    use_unigram(document, /*unk_id=*/3, subject);
    use_sentence_words(document,
                       config_flag(config, "add_prefix_space", true) ? "always" : "never");
    rules.default_specials = sentence_specials();
    rules.post_processor = ends("bos_token", "eos_token");
    return true;
  }
  return false;
}

}  // namespace

ClassRules apply_class_rules(const std::string& tokenizer_class, const Json& tokenizer_config,
                             Json& document, const std::string& subject) {
  ClassRules rules{.name = tokenizer_class};
  const bool has_prefix = config_flag(tokenizer_config, "add_prefix_space", false);
  if (tokenizer_class == "LlamaTokenizer" || tokenizer_class == "CodeLlamaTokenizer") {
    use_bpe(document, /*is_sentence_piece=*/true, subject);
    Json settings = tokenizer_config;
    if (tokenizer_class == "CodeLlamaTokenizer" && settings.is_object()) settings.erase("legacy");
    use_llama_pipeline(settings, document);
    rules.default_specials = llama_specials();
  } else if (tokenizer_class == "GemmaTokenizer") {
    use_gemma(document, subject);
    rules.default_specials = {{"unk_token", "<unk>"},
                              {"bos_token", "<bos>"},
                              {"eos_token", "<eos>"},
                              {"pad_token", "<pad>"},
                              {"mask_token", "<mask>"}};
  } else if (tokenizer_class == "GPT2Tokenizer" || tokenizer_class == "GPTNeoXTokenizer" ||
             tokenizer_class == "RobertaTokenizer") {
    use_byte_level_words(rules, has_prefix, document, subject);
  } else if (tokenizer_class == "Qwen2Tokenizer") {
    use_qwen2(rules, has_prefix, document, subject);
  } else if (use_word_models(rules, tokenizer_config, document, subject)) {
    return rules;
  } else if (builds_unknown_pipeline(tokenizer_class)) {
    throw FormatError(
        "{}: found tokenizer_class \"{}\", expected one of TokenizersBackend, "
        "PreTrainedTokenizerFast, LlamaTokenizer, CodeLlamaTokenizer, GemmaTokenizer, "
        "GPT2Tokenizer, GPTNeoXTokenizer, RobertaTokenizer, Qwen2Tokenizer, BertTokenizer, "
        "MPNetTokenizer, T5Tokenizer, XLMRobertaTokenizer",
        subject, tokenizer_class);
  } else {
    rules.name.clear();
  }
  return rules;
}

}  // namespace strata::text
