// Classes over SentencePiece vocabularies: Unigram, and BPE with words marked by U+2581. From the
// constructors of transformers 5.23.
#include <map>

#include "strata/text/classes/builder.h"

namespace strata::text {
namespace {

Json numbered(const std::string& before, const std::string& after, int first, int end) {
  Json tokens = Json::array();
  for (int i = first; i < end; ++i) tokens.push_back(before + std::to_string(i) + after);
  return tokens;
}

Json words_after_spaces(const std::string& scheme) {
  return pre_tokenizers({component("WhitespaceSplit"), metaspace(scheme)});
}

Json quotes() { return replaced("``", "\""); }
Json double_quotes() { return replaced("''", "\""); }

// Blanks, normal form and end of line, as Barthez and DeBERTa-v2 treat them.
std::vector<Json> blank_steps() {
  return {replaced_regex(R"(\s{2,}|[\n\r\t])", " "), component("NFC"),
          stripped(/*left=*/false, /*right=*/true)};
}

// The decoder of Llama and Gemma.
Json byte_fallback_decoder(bool strips_first) {
  Json strip = nullptr;
  if (strips_first) {
    strip = component("Strip");
    strip["content"] = " ";
    strip["start"] = 1;
    strip["stop"] = 0;
  }
  return decoders({replaced("▁", " "), component("ByteFallback"), component("Fuse"), strip});
}

void llama(ClassBuilder& b) {
  b.use_bpe({.fuse_unk = true, .byte_fallback = true});
  const bool has_prefix = b.flag("add_prefix_space", true);
  const char* scheme = !has_prefix ? "never" : b.flag("legacy", false) ? "always" : "first";
  b.use_parts(nullptr, metaspace(scheme, /*split=*/false), byte_fallback_decoder(has_prefix));
  b.rules.default_specials = {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
}

void code_llama(ClassBuilder& b) {
  llama(b);
  b.document["model"]["unk_token"] = b.text("unk_token", "<unk>");
  const char* scheme = b.flag("add_prefix_space", true) ? "first" : "never";
  b.use_parts(b.document.value("normalizer", Json()), metaspace(scheme, /*split=*/false),
              byte_fallback_decoder(/*strips_first=*/true));
  b.rules.default_specials.update({{"prefix_token", "▁<PRE>"},
                                   {"middle_token", "▁<MID>"},
                                   {"suffix_token", "▁<SUF>"},
                                   {"eot_token", "▁<EOT>"},
                                   {"fill_token", "<FILL_ME>"}});
  b.rules.post_processor = ends({"bos_token", "$A"}, {"bos_token", "$A", "bos_token:1", "$B:1"});
}

void gemma(ClassBuilder& b) {
  b.use_bpe({.unk = b.text("unk_token", "<unk>"), .fuse_unk = true, .byte_fallback = true});
  b.use_parts(replaced(" ", "▁"), split_string(" ", "MergedWithPrevious"),
              byte_fallback_decoder(/*strips_first=*/false));
  b.rules.default_specials = {{"unk_token", "<unk>"},
                              {"bos_token", "<bos>"},
                              {"eos_token", "<eos>"},
                              {"pad_token", "<pad>"},
                              {"mask_token", "<mask>"}};
}

void siglip2(ClassBuilder& b) {
  gemma(b);
  b.document["normalizer"] = normalizers({component("Lowercase"), replaced(" ", "▁")});
}

void tipsv2(ClassBuilder& b) {
  b.use_bpe({.fuse_unk = true, .byte_fallback = true});
  b.use_parts(normalizers({b.flag("do_lower_case", true) ? component("Lowercase") : Json(nullptr),
                           b.precompiled()}),
              words_after_spaces("always"),
              decoders({metaspace("always"), component("ByteFallback"), component("Fuse")}));
  b.rules.default_specials = {{"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
}

// The unigram models whose words end at white space.
void use_words(ClassBuilder& b, size_t unk_id, const std::string& scheme) {
  b.use_unigram(unk_id);
  b.use_parts(b.precompiled(), words_after_spaces(scheme), metaspace(scheme));
}

void t5_like(ClassBuilder& b, size_t unk_id) {
  use_words(b, unk_id, "always");
  b.rules.default_specials = {
      {"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
  b.rules.default_specials["additional_special_tokens"] =
      numbered("<extra_id_", ">", 0, static_cast<int>(b.number("extra_ids", 100)));
}

void t5(ClassBuilder& b) {
  t5_like(b, 2);
  b.rules.post_processor = repeated_ends("eos_token");
}

void lasr(ClassBuilder& b) {
  t5_like(b, 3);
  b.rules.post_processor = repeated_ends("eos_token");
}

void video_prism(ClassBuilder& b) { t5_like(b, 2); }

void udop(ClassBuilder& b) {
  use_words(b, b.piece_index(b.text("unk_token", "<unk>"), /*without_score=*/false, 2), "always");
  b.document["normalizer"] = nullptr;
  b.rules.default_specials = {
      {"eos_token", "</s>"}, {"sep_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
  b.rules.post_processor = repeated_ends("eos_token");
}

void xlm_roberta(ClassBuilder& b) {
  use_words(b, 3, b.scheme());
  b.rules.default_specials = fairseq_specials();
  b.rules.default_specials["mask_token"] = "<mask>";
  b.rules.post_processor = doubled_ends("bos_token", "eos_token");
}

void camembert(ClassBuilder& b) {
  use_words(b, b.piece_index(b.text("unk_token", "<unk>"), /*without_score=*/false, 0), b.scheme());
  b.rules.default_specials = fairseq_specials();
  b.rules.default_specials["additional_special_tokens"] = {"<s>NOTUSED", "</s>NOTUSED",
                                                           "<unk>NOTUSED"};
  b.rules.post_processor = doubled_ends("bos_token", "eos_token");
}

// ALBERT and XLNet write accents as letters with marks, and drop the marks.
std::vector<Json> accent_steps(bool keeps_accents, bool lowercase) {
  std::vector<Json> steps = {quotes(), double_quotes()};
  if (!keeps_accents) {
    steps.push_back(component("NFKD"));
    steps.push_back(component("StripAccents"));
  }
  if (lowercase) steps.push_back(component("Lowercase"));
  return steps;
}

void albert(ClassBuilder& b) {
  std::vector<Json> steps =
      accent_steps(b.flag("keep_accents", false), b.flag("do_lower_case", true));
  steps.push_back(b.precompiled());
  use_words(b, 1, b.scheme());
  b.document["normalizer"] = normalizers(std::move(steps));
  b.rules.default_specials = bracket_specials("<unk>", "<pad>");
  b.rules.post_processor = bert_ends();
  b.rules.post_processor_applies = ClassRules::Applies::kIfFileHasNone;
}

void xlnet(ClassBuilder& b) {
  std::vector<Json> steps = accent_steps(/*keeps_accents=*/false, b.flag("do_lower_case", false));
  steps.push_back(b.precompiled());
  use_words(b, b.number("unk_id", 0), "always");
  b.document["normalizer"] = normalizers(std::move(steps));
  b.rules.default_specials = {{"bos_token", "<s>"},
                              {"eos_token", "</s>"},
                              {"unk_token", "<unk>"},
                              {"sep_token", "<sep>"},
                              {"pad_token", "<pad>"},
                              {"cls_token", "<cls>"},
                              {"mask_token", mask_token("<mask>")}};
  b.rules.default_specials["additional_special_tokens"] = {"<eop>", "<eod>"};
  b.rules.post_processor = ends({"$A", "sep_token", "cls_token:2"},
                                {"$A", "sep_token", "$B:1", "sep_token:1", "cls_token:2"});
}

// The unigram models of whole texts.
void use_texts(ClassBuilder& b, size_t unk_id, Json normalizer, const std::string& scheme) {
  b.use_unigram(unk_id);
  b.use_parts(std::move(normalizer), metaspace(scheme), metaspace(scheme));
}

void rembert(ClassBuilder& b) {
  std::vector<Json> steps = {quotes(), double_quotes(), one_space()};
  if (!b.flag("keep_accents", true)) {
    steps.push_back(component("NFKD"));
    steps.push_back(component("StripAccents"));
  }
  if (b.flag("do_lower_case", false)) steps.push_back(component("Lowercase"));
  steps.push_back(b.precompiled());
  use_texts(b, 2, normalizers(std::move(steps)), b.scheme());
  b.rules.default_specials = bracket_specials("<unk>", "<pad>");
  b.rules.post_processor = bert_ends();
  b.rules.post_processor_applies = ClassRules::Applies::kIfFileHasOne;
  b.rules.readds = ClassRules::Readds::kDefaults;
}

void deberta_v2(ClassBuilder& b) {
  std::vector<Json> steps = blank_steps();
  if (b.flag("do_lower_case", false)) steps.insert(steps.begin(), component("Lowercase"));
  const std::string scheme = b.scheme("first");
  use_texts(
      b, b.piece_index(b.text("unk_token", "[UNK]"), /*without_score=*/true, b.number("unk_id", 1)),
      normalizers(std::move(steps)), scheme);
  Json punctuation = nullptr;
  if (b.flag("split_by_punct", false)) {
    punctuation = component("Punctuation");
    punctuation["behavior"] = "Isolated";
  }
  b.document["pre_tokenizer"] = pre_tokenizers({punctuation, metaspace(scheme)});
  b.rules.default_specials = bracket_specials("[UNK]", "[PAD]");
  b.rules.post_processor = bert_ends();
}

void barthez(ClassBuilder& b) {
  use_texts(b, 3, normalizers(blank_steps()), b.scheme());
  b.rules.default_specials = fairseq_specials();
}

void big_bird(ClassBuilder& b) {
  use_texts(b, b.piece_index(b.text("unk_token", "<unk>"), /*without_score=*/true, 100),
            normalizers({stripped(/*left=*/false, /*right=*/false), replaced_regex(" {2,}", "▁")}),
            b.scheme());
  b.rules.default_specials = {{"unk_token", "<unk>"},
                              {"bos_token", "<s>"},
                              {"eos_token", "</s>"},
                              {"pad_token", "<pad>"},
                              {"sep_token", "[SEP]"},
                              {"cls_token", "[CLS]"},
                              {"mask_token", mask_token("[MASK]")}};
  b.rules.post_processor = bert_ends();
}

void layoutxlm(ClassBuilder& b) {
  use_texts(b, 3,
            normalizers({stripped(/*left=*/false, /*right=*/true), replaced_regex(" {2,}", "▁")}),
            b.scheme());
  b.rules.default_specials = fairseq_specials();
  b.rules.post_processor = doubled_ends("cls_token", "sep_token");
}

void pegasus(ClassBuilder& b) {
  Json precompiled = b.precompiled();
  Json first = precompiled.is_null() ? replaced_regex(R"(\n)", " ") : std::move(precompiled);
  use_texts(b, b.piece_index(b.text("unk_token", "<unk>"), /*without_score=*/true, 0, /*first=*/1),
            normalizers({std::move(first), one_space()}), "always");
  Json more = numbered("<unk_", ">", 2, static_cast<int>(b.number("offset", 103)));
  if (!b.is_null("mask_token_sent")) {
    more.insert(more.begin(), b.text("mask_token_sent", "<mask_1>"));
  }
  b.rules.default_specials = {{"pad_token", "<pad>"},
                              {"eos_token", "</s>"},
                              {"unk_token", "<unk>"},
                              {"mask_token", "<mask_2>"}};
  b.rules.default_specials["additional_special_tokens"] = std::move(more);
  b.rules.post_processor = outer_ends({}, {"eos_token"});
}

void mluke(ClassBuilder& b) {
  use_texts(b, 0, normalizers({quotes(), double_quotes()}), "always");
  b.rules.default_specials = fairseq_specials();
  b.rules.default_specials.update({{"entity_1_token", "▁<ent>"},
                                   {"entity_2_token", "▁<ent2>"},
                                   {"entity_unk_token", "[UNK]"},
                                   {"entity_pad_token", "[PAD]"},
                                   {"entity_mask_token", "[MASK]"},
                                   {"entity_mask2_token", "[MASK2]"}});
  b.rules.post_processor =
      ends({"cls_token", "$A", "sep_token"},
           {"cls_token", "$A", "sep_token", "sep_token", "$B:1", "sep_token:1"});
  b.rules.readds = ClassRules::Readds::kDefaults;
}

void xglm(ClassBuilder& b) {
  use_texts(b, 3, normalizers({b.precompiled(), one_space()}), b.scheme());
  b.rules.default_specials = fairseq_specials();
  b.rules.default_specials.erase("mask_token");
  b.rules.default_specials["additional_special_tokens"] = numbered("<madeupword", ">", 0, 7);
  b.rules.post_processor =
      ends({"eos_token", "$A"}, {"eos_token", "$A", "eos_token", "eos_token", "$B"});
}

void reformer(ClassBuilder& b) {
  Json precompiled = b.precompiled();
  b.use_bpe({.unk = b.text("unk_token", "<unk>"), .fuse_unk = true});
  b.use_parts(
      precompiled.is_null() ? Json(nullptr) : normalizers({std::move(precompiled), one_space()}),
      metaspace("always"), metaspace("always"));
  b.rules.default_specials = {{"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  b.rules.readds = ClassRules::Readds::kDefaults;
}

}  // namespace

const ClassTable& sentence_classes() {
  static const ClassTable classes = {
      {"AlbertTokenizer", albert},
      {"BarthezTokenizer", barthez},
      {"BigBirdTokenizer", big_bird},
      {"CamembertTokenizer", camembert},
      {"CodeLlamaTokenizer", code_llama},
      {"DebertaV2Tokenizer", deberta_v2},
      {"GemmaTokenizer", gemma},
      {"LasrTokenizer", lasr},
      {"LayoutXLMTokenizer", layoutxlm},
      {"LlamaTokenizer", llama},
      {"MLukeTokenizer", mluke},
      {"PegasusTokenizer", pegasus},
      {"ReformerTokenizer", reformer},
      {"RemBertTokenizer", rembert},
      {"Siglip2Tokenizer", siglip2},
      {"T5Tokenizer", t5},
      {"Tipsv2Tokenizer", tipsv2},
      {"UdopTokenizer", udop},
      {"VideoPrismTokenizer", video_prism},
      {"XGLMTokenizer", xglm},
      {"XLMRobertaTokenizer", xlm_roberta},
      {"XLNetTokenizer", xlnet},
  };
  return classes;
}

}  // namespace strata::text
