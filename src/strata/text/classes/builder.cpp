#include "strata/text/classes/builder.h"

#include "strata/base/error.h"
#include "strata/text/component_json.h"

namespace strata::text {
namespace {

Json list_of(std::vector<Json> steps) {
  Json list = Json::array();
  for (Json& step : steps) {
    if (!step.is_null()) list.push_back(std::move(step));
  }
  return list;
}

Json sequence(const char* key, std::vector<Json> steps) {
  Json json = component("Sequence");
  json[key] = list_of(std::move(steps));
  return json;
}

Json replace_by(const char* kind, const std::string& pattern, const std::string& content) {
  Json json = component("Replace");
  json["pattern"][kind] = pattern;
  json["content"] = content;
  return json;
}

Json split_by(const char* kind, const std::string& pattern, const char* behavior, bool invert) {
  Json json = component("Split");
  json["pattern"][kind] = pattern;
  json["behavior"] = behavior;
  json["invert"] = invert;
  return json;
}

}  // namespace

Json component(const char* type) {
  Json json = Json::object();
  json["type"] = type;
  return json;
}

Json byte_level(bool add_prefix_space, bool use_regex) {
  Json json = component("ByteLevel");
  json["add_prefix_space"] = add_prefix_space;
  json["trim_offsets"] = true;
  json["use_regex"] = use_regex;
  return json;
}

Json metaspace(const std::string& scheme, bool split) {
  Json json = component("Metaspace");
  json["replacement"] = "▁";
  json["prepend_scheme"] = scheme;
  json["split"] = split;
  return json;
}

Json replaced(const std::string& text, const std::string& content) {
  return replace_by("String", text, content);
}

Json replaced_regex(const std::string& pattern, const std::string& content) {
  return replace_by("Regex", pattern, content);
}

Json stripped(bool left, bool right) {
  Json json = component("Strip");
  json["strip_left"] = left;
  json["strip_right"] = right;
  return json;
}

Json split_regex(const std::string& pattern, const char* behavior, bool invert) {
  return split_by("Regex", pattern, behavior, invert);
}

Json split_string(const std::string& text, const char* behavior) {
  return split_by("String", text, behavior, /*invert=*/false);
}

Json bert_normalizer(bool lowercase, Json strip_accents, bool clean, bool chinese) {
  Json json = component("BertNormalizer");
  json["clean_text"] = clean;
  json["handle_chinese_chars"] = chinese;
  json["strip_accents"] = std::move(strip_accents);
  json["lowercase"] = lowercase;
  return json;
}

Json normalizers(std::vector<Json> steps) { return sequence("normalizers", std::move(steps)); }
Json pre_tokenizers(std::vector<Json> steps) { return sequence("pretokenizers", std::move(steps)); }
Json decoders(std::vector<Json> steps) { return sequence("decoders", std::move(steps)); }

Json one_space() { return replaced_regex(" {2,}", " "); }

Json ends(const Pieces& single, const Pieces& pair) {
  Json specials = Json::object();
  const auto piece = [&specials](const std::string& text) {
    const bool has_type = text.size() > 2 && text[text.size() - 2] == ':';
    const std::string name = has_type ? text.substr(0, text.size() - 2) : text;
    const int type = has_type ? text.back() - '0' : 0;
    if (name == "$A" || name == "$B") {
      return Json{{"Sequence", {{"id", name.substr(1)}, {"type_id", type}}}};
    }
    specials[name] = {{"id", name}, {"ids", Json::array({name})}, {"tokens", Json::array({name})}};
    return Json{{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  const auto pieces = [&piece](const Pieces& texts) {
    Json list = Json::array();
    for (const std::string& text : texts) list.push_back(piece(text));
    return list;
  };
  Json json = component("TemplateProcessing");
  json["single"] = pieces(single);
  json["pair"] = pieces(pair);
  json["special_tokens"] = std::move(specials);
  return json;
}

Json bert_ends() {
  return ends({"cls_token", "$A", "sep_token"},
              {"cls_token", "$A", "sep_token", "$B:1", "sep_token:1"});
}

Json doubled_ends(const std::string& first, const std::string& last) {
  return ends({first, "$A", last}, {first, "$A", last, last, "$B", last});
}

Json repeated_ends(const std::string& last) { return ends({"$A", last}, {"$A", last, "$B", last}); }

Json outer_ends(const Pieces& before, const Pieces& after) {
  const auto around = [&](Pieces texts) {
    texts.insert(texts.begin(), before.begin(), before.end());
    texts.insert(texts.end(), after.begin(), after.end());
    return texts;
  };
  return ends(around({"$A"}), around({"$A", "$B"}));
}

Json cls_sep_ends(bool trim_offsets, bool add_prefix_space) {
  Json json = component("RobertaProcessing");
  json["sep"] = Json::array({"sep", "sep_token"});
  json["cls"] = Json::array({"cls", "cls_token"});
  json["trim_offsets"] = trim_offsets;
  json["add_prefix_space"] = add_prefix_space;
  return json;
}

Json mask_token(const char* content) {
  Json json = Json::object();
  json["content"] = content;
  json["lstrip"] = true;
  json["normalized"] = false;
  return json;
}

Json fairseq_specials() {
  return {{"bos_token", "<s>"},
          {"eos_token", "</s>"},
          {"sep_token", "</s>"},
          {"cls_token", "<s>"},
          {"unk_token", "<unk>"},
          {"pad_token", "<pad>"},
          {"mask_token", mask_token("<mask>")}};
}

Json bert_specials() {
  return {{"unk_token", "[UNK]"},
          {"sep_token", "[SEP]"},
          {"pad_token", "[PAD]"},
          {"cls_token", "[CLS]"},
          {"mask_token", "[MASK]"}};
}

Json bracket_specials(const char* unk, const char* pad) {
  Json specials = bert_specials();
  specials.update({{"bos_token", "[CLS]"}, {"eos_token", "[SEP]"}});
  specials["unk_token"] = unk;
  specials["pad_token"] = pad;
  return specials;
}

bool ClassBuilder::flag(const char* key, bool fallback) const {
  if (!settings.is_object()) return fallback;
  const auto it = settings.find(key);
  return it != settings.end() && it->is_boolean() ? it->get<bool>() : fallback;
}

bool ClassBuilder::is_null(const char* key) const {
  return settings.is_object() && settings.contains(key) && settings.at(key).is_null();
}

std::string ClassBuilder::text(const char* key, const std::string& fallback) const {
  if (!settings.is_object()) return fallback;
  const auto it = settings.find(key);
  if (it == settings.end()) return fallback;
  if (it->is_object() && it->contains("content")) {
    return required_string(*it, "content", subject + ": " + key);
  }
  return it->is_string() ? it->get<std::string>() : fallback;
}

size_t ClassBuilder::number(const char* key, size_t fallback) const {
  if (!settings.is_object()) return fallback;
  const auto it = settings.find(key);
  return it != settings.end() && it->is_number_unsigned() ? it->get<size_t>() : fallback;
}

std::string ClassBuilder::scheme(const char* without) const {
  return flag("add_prefix_space", true) ? "always" : without;
}

namespace {

void require_model(const char* type, const ClassBuilder& builder) {
  const Json& model = builder.document.at("model");
  if (!model.is_object()) {
    throw FormatError("{}: model: found {}, expected an object", builder.subject,
                      model.type_name());
  }
  const auto found = model.find("type");
  if (found == model.end() || !found->is_string() || *found == type) return;
  throw_unsupported(found->get<std::string>(), builder.subject + ": model", type);
}

}  // namespace

void ClassBuilder::use_bpe(const BpeForm& form) const {
  require_model("BPE", *this);
  Json model = component("BPE");
  model["fuse_unk"] = form.fuse_unk;
  model["byte_fallback"] = form.byte_fallback;
  if (!form.unk.empty()) model["unk_token"] = form.unk;
  if (!form.word_end.empty()) model["end_of_word_suffix"] = form.word_end;
  document["model"] = std::move(model);
}

void ClassBuilder::use_unigram(size_t unk_id) const {
  require_model("Unigram", *this);
  Json& model = document["model"];
  Json vocab = std::move(model["vocab"]);
  model = component("Unigram");
  model["unk_id"] = unk_id;
  model["byte_fallback"] = false;
  model["vocab"] = std::move(vocab);
}

void ClassBuilder::use_word_piece(const std::string& unk) const {
  require_model("WordPiece", *this);
  Json model = component("WordPiece");
  model["unk_token"] = unk;
  document["model"] = std::move(model);
}

size_t ClassBuilder::piece_index(const std::string& token, bool without_score, size_t fallback,
                                 size_t first) const {
  const Json& model = document.at("model");
  const auto vocab = model.find("vocab");
  if (vocab == model.end() || !vocab->is_array()) return fallback;
  for (size_t i = first; i < vocab->size(); ++i) {
    const Json& piece = (*vocab)[i];
    if (!piece.is_array() || piece.size() != 2 || piece[0] != token) continue;
    if (!without_score || piece[1] == 0.0) return i;
  }
  return fallback;
}

Json ClassBuilder::precompiled() const {
  const auto it = document.find("normalizer");
  if (it == document.end() || !it->is_object()) return nullptr;
  const auto is_it = [](const Json& step) {
    return step.is_object() && step.contains("type") && step["type"] == "Precompiled";
  };
  if (is_it(*it)) return *it;
  const auto steps = it->find("normalizers");
  if (steps == it->end() || !steps->is_array()) return nullptr;
  for (const Json& step : *steps) {
    if (is_it(step)) return step;
  }
  return nullptr;
}

void ClassBuilder::use_parts(Json normalizer, Json pre_tokenizer, Json decoder) const {
  document["normalizer"] = std::move(normalizer);
  document["pre_tokenizer"] = std::move(pre_tokenizer);
  document["decoder"] = std::move(decoder);
}

}  // namespace strata::text
