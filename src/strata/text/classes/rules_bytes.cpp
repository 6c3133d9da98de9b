// Classes over byte-level BPE: GPT-2 and its relatives. From the constructors of transformers 5.23.
#include <map>

#include "strata/text/classes/builder.h"
#include "strata/text/split_fast.h"

namespace strata::text {
namespace {

constexpr const char* kEndOfText = "<|endoftext|>";

Json roberta_specials() {
  Json specials = fairseq_specials();
  specials["mask_token"] = "<mask>";
  return specials;
}

Json gpt2_specials() {
  return {{"unk_token", kEndOfText}, {"bos_token", kEndOfText}, {"eos_token", kEndOfText}};
}

// Byte-level BPE with the pattern of GPT-2.
void use_plain(ClassBuilder& b, bool has_prefix) {
  b.use_bpe({});
  b.use_parts(nullptr, byte_level(has_prefix), byte_level(true));
}

// The same, its pieces cut by a pattern of its own.
void use_pattern(ClassBuilder& b, std::string_view pattern) {
  b.use_bpe({});
  b.use_parts(component("NFC"),
              pre_tokenizers({split_regex(std::string(pattern), "Isolated"),
                              byte_level(b.flag("add_prefix_space", false), /*use_regex=*/false)}),
              byte_level(true));
  b.rules.default_specials = {
      {"unk_token", kEndOfText}, {"eos_token", kEndOfText}, {"pad_token", kEndOfText}};
}

void gpt2(ClassBuilder& b) {
  use_plain(b, b.flag("add_prefix_space", false));
  b.rules.default_specials = gpt2_specials();
}

void gpt_neox(ClassBuilder& b) {
  gpt2(b);
  b.document["normalizer"] = component("NFC");
  b.document["post_processor"] = nullptr;
  b.rules.default_specials["pad_token"] = "<|padding|>";
}

void codegen(ClassBuilder& b) {
  gpt2(b);
  b.rules.post_processor = byte_level(true);
  b.rules.post_processor["trim_offsets"] = false;
  b.rules.post_processor_applies = ClassRules::Applies::kIfFileHasNone;
}

void roberta(ClassBuilder& b) {
  const bool has_prefix = b.flag("add_prefix_space", false);
  use_plain(b, has_prefix);
  b.rules.default_specials = roberta_specials();
  b.rules.post_processor = cls_sep_ends(b.flag("trim_offsets", true), has_prefix);
}

void layoutlmv3(ClassBuilder& b) {
  const bool has_prefix = b.flag("add_prefix_space", true);
  use_plain(b, has_prefix);
  b.rules.default_specials = roberta_specials();
  b.rules.post_processor = cls_sep_ends(/*trim_offsets=*/true, has_prefix);
}

void luke(ClassBuilder& b) {
  use_plain(b, b.flag("add_prefix_space", false));
  b.rules.default_specials = roberta_specials();
  b.rules.default_specials.update({{"entity_1_token", "<ent>"},
                                   {"entity_2_token", "<ent2>"},
                                   {"entity_unk_token", "[UNK]"},
                                   {"entity_pad_token", "[PAD]"},
                                   {"entity_mask_token", "[MASK]"},
                                   {"entity_mask2_token", "[MASK2]"}});
  b.rules.post_processor = cls_sep_ends(/*trim_offsets=*/true, /*add_prefix_space=*/true);
}

void markuplm(ClassBuilder& b) {
  use_plain(b, b.flag("add_prefix_space", false));
  b.rules.default_specials = fairseq_specials();
  b.rules.post_processor =
      ends({"cls_token", "$A", "sep_token"}, {"cls_token", "$A", "sep_token", "$B", "sep_token"});
}

void blenderbot(ClassBuilder& b) {
  use_plain(b, b.flag("add_prefix_space", true));
  b.rules.default_specials = fairseq_specials();
}

void deberta(ClassBuilder& b) {
  use_plain(b, b.flag("add_prefix_space", false));
  b.rules.default_specials = bracket_specials("[UNK]", "[PAD]");
  b.rules.post_processor = doubled_ends("cls_token", "sep_token");
}

void cohere(ClassBuilder& b) {
  const bool has_prefix = b.flag("add_prefix_space", false);
  b.use_bpe({});
  Json digits = component("Digits");
  digits["individual_digits"] = true;
  b.use_parts(component("NFC"), pre_tokenizers({digits, byte_level(has_prefix)}),
              byte_level(has_prefix));
  b.rules.default_specials = {{"unk_token", "<UNK>"},
                              {"bos_token", "<BOS_TOKEN>"},
                              {"eos_token", "<|END_OF_TURN_TOKEN|>"},
                              {"pad_token", "<PAD>"},
                              {"cls_token", "<CLS>"},
                              {"sep_token", "<SEP>"},
                              {"mask_token", "<MASK_TOKEN>"}};
  b.rules.readds = ClassRules::Readds::kDefaults;
}

void nougat(ClassBuilder& b) {
  b.use_bpe({});
  Json digits = component("Digits");
  digits["individual_digits"] = true;
  // The third is written as a pattern, but the class looks for it as it stands.
  b.use_parts(
      component("NFKC"),
      pre_tokenizers({split_string("SPL1T-TH1S-Pl3A5E", "Removed"), digits,
                      split_string(R"([\(\)\[\]\{\}]|([!\"#\$%\&'\*\+,\-\./:;<=>\?\\\^_`\|\~])\1*)",
                                   "Isolated"),
                      split_string("\n", "Isolated"), byte_level(false)}),
      byte_level(true));
  b.rules.default_specials = {
      {"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", "<pad>"}};
  b.rules.post_processor = ends({"bos_token", "$A", "eos_token"}, {"$A", "$B:1"});
}

void whisper(ClassBuilder& b) {
  use_plain(b, b.flag("add_prefix_space", false));
  b.rules.default_specials = gpt2_specials();
  Pieces single = {"<|startoftranscript|>"};
  if (const std::string task = b.text("task", ""); !task.empty()) {
    single.push_back(task == "transcribe" ? "<|transcribe|>" : "<|translate|>");
  }
  if (!b.flag("predict_timestamps", false)) single.push_back("<|notimestamps|>");
  single.push_back("$A");
  Pieces pair = single;
  single.push_back("eos_token");
  for (const char* piece : {"$B:1", "eos_token:1"}) pair.emplace_back(piece);
  b.rules.post_processor = ends(single, pair);
}

void clip(ClassBuilder& b) {
  b.use_bpe({.unk = b.text("unk_token", kEndOfText), .word_end = "</w>"});
  constexpr const char* kWords =
      R"(<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)";
  // Decoding ends every word with a space and leaves none at the ends.
  Json trimmed = component("Strip");
  trimmed["content"] = " ";
  trimmed["start"] = trimmed["stop"] = INT32_MAX;
  b.use_parts(
      normalizers({component("NFC"), replaced_regex(R"(\s+)", " "), component("Lowercase")}),
      pre_tokenizers({split_regex(kWords, "Removed", /*invert=*/true), byte_level(false)}),
      decoders({byte_level(true), replaced("</w>", " "), trimmed}));
  b.rules.default_specials = {{"unk_token", kEndOfText},
                              {"bos_token", "<|startoftext|>"},
                              {"eos_token", kEndOfText},
                              {"pad_token", kEndOfText}};
  b.rules.post_processor = doubled_ends("bos_token", "eos_token");
}

void qwen2(ClassBuilder& b) {
  use_pattern(b, kQwen2Pattern);
  b.rules.readds = ClassRules::Readds::kAll;
}

void qwen3_5(ClassBuilder& b) { use_pattern(b, kQwen35Pattern); }

}  // namespace

const ClassTable& byte_classes() {
  static const ClassTable classes = {
      {"GPT2Tokenizer", gpt2},
      {"GPTNeoXTokenizer", gpt_neox},
      {"CodeGenTokenizer", codegen},
      {"RobertaTokenizer", roberta},
      {"BlenderbotTokenizer", blenderbot},
      {"CLIPTokenizer", clip},
      {"CohereTokenizer", cohere},
      {"DebertaTokenizer", deberta},
      {"LayoutLMv3Tokenizer", layoutlmv3},
      {"LukeTokenizer", luke},
      {"MarkupLMTokenizer", markuplm},
      {"NougatTokenizer", nougat},
      {"Qwen2Tokenizer", qwen2},
      {"Qwen3_5Tokenizer", qwen3_5},
      {"WhisperTokenizer", whisper},
  };
  return classes;
}

}  // namespace strata::text
