// Classes of translation models: a token for the language before or after the text. From the
// constructors of transformers 5.23, as their tokenizers read source texts.
#include <algorithm>
#include <map>

#include "strata/base/error.h"
#include "strata/text/classes/builder.h"
#include "strata/text/classes/language_codes.h"

namespace strata::text {
namespace {

void use_ends(ClassBuilder& b, LanguageEnds ends, const std::string& language) {
  b.rules.language_ends = std::move(ends);
  b.rules.post_processor = ends_of_language(*b.rules.language_ends, language);
}

void mbart(ClassBuilder& b) {
  b.use_unigram(3);
  b.use_parts(nullptr, pre_tokenizers({component("WhitespaceSplit"), metaspace("always")}),
              metaspace("always"));
  b.rules.default_specials = fairseq_specials();
  b.rules.default_specials["additional_special_tokens"] = listed_codes(kMbartCodes);
  use_ends(b, {.is_first = false}, b.text("src_lang", "en_XX"));
}

void mbart50(ClassBuilder& b) {
  Json precompiled = b.precompiled();
  b.use_unigram(3);
  b.use_parts(normalizers({std::move(precompiled), one_space()}), metaspace("always"),
              metaspace("always"));
  b.rules.default_specials = fairseq_specials();
  b.rules.default_specials.erase("bos_token");
  const Json codes = listed_codes(kMbartCodes, kMoreMbart50Codes);
  b.rules.default_specials["additional_special_tokens"] = codes;
  use_ends(b, {.is_first = true}, b.text("src_lang", "en_XX"));
  // A vocabulary without languages is that of the SentencePiece model: first places and languages
  // are put around it.
  Json& vocab = b.document["model"]["vocab"];
  const auto is_code = [&](const Json& piece) {
    return piece.is_array() && !piece.empty() && std::ranges::find(codes, piece[0]) != codes.end();
  };
  if (!vocab.is_array() || std::ranges::any_of(vocab, is_code)) return;
  Json pieces = Json::array();
  const auto add = [&pieces](const std::string& token) {
    pieces.push_back(Json::array({token, 0.0}));
  };
  add(b.text("cls_token", "<s>"));
  add(b.text("pad_token", "<pad>"));
  add(b.text("eos_token", "</s>"));
  add(b.text("unk_token", "<unk>"));
  for (size_t i = 3; i < vocab.size(); ++i) pieces.push_back(vocab[i]);
  for (const Json& code : codes) add(code.get<std::string>());
  add(b.text("mask_token", "<mask>"));
  vocab = std::move(pieces);
}

void nllb(ClassBuilder& b) {
  Json precompiled = b.precompiled();
  b.use_bpe({.unk = b.text("unk_token", "<unk>"), .fuse_unk = true});
  b.use_parts(
      precompiled.is_null() ? Json(nullptr) : normalizers({std::move(precompiled), one_space()}),
      metaspace("always"), metaspace("always"));
  b.rules.default_specials = fairseq_specials();
  b.rules.default_specials["mask_token"]["normalized"] = true;
  b.rules.default_specials["additional_special_tokens"] = listed_codes(kNllbCodes);
  use_ends(b, {.is_first = !b.flag("legacy_behaviour", false)}, b.text("src_lang", "eng_Latn"));
}

void seamless_m4t(ClassBuilder& b) {
  b.use_bpe({.unk = b.text("unk_token", "<unk>"), .fuse_unk = true});
  b.use_parts(normalizers({replaced_regex(R"([\n\r\t])", " "), component("NFKC"),
                           stripped(/*left=*/false, /*right=*/true), replaced_regex(" +▁", "▁"),
                           replaced_regex("^▁+$", ""), replaced_regex(" {2,}", "▁")}),
              metaspace("first"), metaspace("first"));
  b.rules.default_specials = fairseq_specials();
  b.rules.default_specials.erase("mask_token");
  std::string language = b.text("src_lang", "eng");
  if (language.find("__") == std::string::npos) language = "__" + language + "__";
  b.rules.post_processor = outer_ends({language}, {"eos_token"});
}

// As SentencePiece itself cuts a text, which the reference runs for these classes.
void use_sentencepiece(ClassBuilder& b) {
  std::vector<Json> steps;
  Json precompiled = b.precompiled();
  if (!precompiled.is_null()) {
    precompiled["longest"] = true;
    steps.push_back(std::move(precompiled));
  }
  steps.push_back(one_space());
  steps.push_back(replaced_regex("^ +| +$", ""));
  if (b.document["model"].value("type", "") == "BPE") {
    b.use_bpe({.unk = "<unk>", .fuse_unk = true});
  } else {
    b.use_unigram(b.number("unk_id", 0));
  }
  b.use_parts(normalizers(std::move(steps)), metaspace("always"), metaspace("always"));
  b.rules.default_specials = {
      {"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
}

void m2m_100(ClassBuilder& b) {
  use_sentencepiece(b);
  constexpr const char* kMark = "__";
  b.rules.default_specials["bos_token"] = "<s>";
  b.rules.default_specials["sep_token"] = "</s>";
  const bool is_wmt21 = b.text("language_codes", "m2m100") == "wmt21";
  b.rules.default_specials["additional_special_tokens"] =
      listed_codes(is_wmt21 ? kWmt21Codes : kM2m100Codes, {}, kMark);
  use_ends(b, {.is_first = true, .mark = kMark}, b.text("src_lang", "en"));
}

void marian(ClassBuilder& b) {
  use_sentencepiece(b);
  if (b.flag("separate_vocabs", false)) {
    throw FormatError(
        "{}: found separate_vocabs true, expected one vocabulary for both languages; use another "
        "checkpoint",
        b.subject);
  }
  b.rules.reads_code_prefix = true;
  b.rules.post_processor = outer_ends({}, {"eos_token"});
}

}  // namespace

Json ends_of_language(const LanguageEnds& ends, const std::string& code) {
  const std::string token = ends.token_of(code);
  return ends.is_first ? outer_ends({token}, {"eos_token"}) : outer_ends({}, {"eos_token", token});
}

const ClassTable& language_classes() {
  static const ClassTable classes = {
      {"M2M100Tokenizer", m2m_100}, {"MarianTokenizer", marian},
      {"MBartTokenizer", mbart},    {"MBart50Tokenizer", mbart50},
      {"NllbTokenizer", nllb},      {"SeamlessM4TTokenizer", seamless_m4t},
  };
  return classes;
}

}  // namespace strata::text
