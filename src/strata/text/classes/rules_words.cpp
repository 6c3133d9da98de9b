// Classes over whole words: WordPiece, and BPE with a mark at the end of each word. From the
// constructors of transformers 5.23.
#include <map>

#include "strata/text/classes/builder.h"

namespace strata::text {
namespace {

Json word_piece_decoder(const std::string& prefix = "##") {
  Json json = component("WordPiece");
  json["prefix"] = prefix;
  json["cleanup"] = true;
  return json;
}

Json word_end_decoder() {
  Json json = component("BPEDecoder");
  json["suffix"] = "</w>";
  return json;
}

void use_words(ClassBuilder& b, const char* unk) {
  b.use_word_piece(b.text("unk_token", unk));
  const bool has_accents = b.settings.is_object() && b.settings.contains("strip_accents");
  b.use_parts(bert_normalizer(b.flag("do_lower_case", true),
                              has_accents ? b.settings["strip_accents"] : Json(nullptr),
                              /*clean=*/true, b.flag("tokenize_chinese_chars", true)),
              component("BertPreTokenizer"), word_piece_decoder());
}

void bert(ClassBuilder& b) {
  use_words(b, "[UNK]");
  b.rules.default_specials = bert_specials();
  b.rules.post_processor = bert_ends();
}

// Its constructor keeps do_lower_case to itself.
void dpr(ClassBuilder& b) {
  bert(b);
  b.document["normalizer"]["lowercase"] = true;
}

void splinter(ClassBuilder& b) {
  bert(b);
  b.rules.default_specials["question_token"] = "[QUESTION]";
  const std::string question = b.text("question_token", "[QUESTION]");
  const Pieces pair =
      b.text("padding_side", "right") == "right"
          ? Pieces{"cls_token", "$A", question, ".", "sep_token", "$B:1", "sep_token:1"}
          : Pieces{"cls_token", "$A", "sep_token", "$B:1", question, ".", "sep_token:1"};
  b.rules.post_processor = ends({"cls_token", "$A", "sep_token"}, pair);
}

void mpnet(ClassBuilder& b) {
  use_words(b, "[UNK]");
  b.rules.default_specials = fairseq_specials();
  b.rules.default_specials["unk_token"] = "[UNK]";
  b.rules.post_processor = cls_sep_ends(/*trim_offsets=*/true, /*add_prefix_space=*/false);
}

void funnel(ClassBuilder& b) {
  use_words(b, "<unk>");
  b.document["normalizer"]["clean_text"] = b.flag("clean_text", true);
  b.document["decoder"] = word_piece_decoder(b.text("wordpieces_prefix", "##"));
  b.rules.default_specials = {{"unk_token", "<unk>"},   {"sep_token", "<sep>"},
                              {"pad_token", "<pad>"},   {"cls_token", "<cls>"},
                              {"mask_token", "<mask>"}, {"bos_token", "<s>"},
                              {"eos_token", "</s>"}};
  b.rules.post_processor = ends({"cls_token:2", "$A", "sep_token"},
                                {"cls_token:2", "$A", "sep_token", "$B:1", "sep_token:1"});
}

void herbert(ClassBuilder& b) {
  b.use_bpe({.unk = b.text("unk_token", "<unk>"), .word_end = "</w>"});
  b.use_parts(bert_normalizer(/*lowercase=*/false, /*strip_accents=*/false),
              component("BertPreTokenizer"), word_end_decoder());
  b.rules.default_specials = {{"cls_token", "<s>"},
                              {"unk_token", "<unk>"},
                              {"pad_token", "<pad>"},
                              {"mask_token", "<mask>"},
                              {"sep_token", "</s>"}};
  Json post = component("BertProcessing");  // the ids are the class's, whatever tokens they are
  post["sep"] = Json::array({"</s>", 2});
  post["cls"] = Json::array({"<s>", 0});
  b.rules.post_processor = std::move(post);
}

void openai_gpt(ClassBuilder& b) {
  b.use_bpe({.unk = b.text("unk_token", "<unk>"), .word_end = "</w>"});
  b.use_parts(bert_normalizer(/*lowercase=*/true, nullptr), component("BertPreTokenizer"),
              word_end_decoder());
  b.rules.default_specials = {{"unk_token", "<unk>"}};
}

}  // namespace

const ClassTable& word_classes() {
  static const ClassTable classes = {
      {"BertTokenizer", bert},
      {"DistilBertTokenizer", bert},
      {"DPRContextEncoderTokenizer", dpr},
      {"DPRQuestionEncoderTokenizer", dpr},
      {"DPRReaderTokenizer", dpr},
      {"FunnelTokenizer", funnel},
      {"HerbertTokenizer", herbert},
      {"LayoutLMv2Tokenizer", bert},
      {"MPNetTokenizer", mpnet},
      {"OpenAIGPTTokenizer", openai_gpt},
      {"SplinterTokenizer", splinter},
  };
  return classes;
}

}  // namespace strata::text
