#include "strata/text/classes/rules.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "strata/base/error.h"
#include "strata/text/classes/builder.h"
#include "strata/text/component_json.h"

namespace strata::text {
namespace {

// Classes that transformers does not build from the vocabulary of a tokenizer.json, and why.
const char* reason_to_refuse(std::string_view name) {
  constexpr const char* kPython =
      "which transformers runs in Python from other files than tokenizer.json";
  static const std::map<std::string_view, const char*> reasons = {
      {"EsmcTokenizer", "which has a fixed vocabulary of its own"},
      {"RoFormerTokenizer", "which cuts words with the Python package rjieba"},
      {"RagTokenizer", "which consists of two tokenizers"},
  };
  if (const auto it = reasons.find(name); it != reasons.end()) return it->second;
  constexpr std::string_view kInPython[] = {
      "BartphoTokenizer",
      "BertGenerationTokenizer",
      "BertJapaneseTokenizer",
      "BertTokenizerLegacy",
      "BertweetTokenizer",
      "BioGptTokenizer",
      "ByT5Tokenizer",
      "BlenderbotSmallTokenizer",
      "CTRLTokenizer",
      "CanineTokenizer",
      "ClvpTokenizer",
      "CpmAntTokenizer",
      "CpmTokenizer",
      "DiaTokenizer",
      "EsmTokenizer",
      "FSMTTokenizer",
      "FastSpeech2ConformerTokenizer",
      "FlaubertTokenizer",
      "GPTNeoXJapaneseTokenizer",
      "GPTSw3Tokenizer",
      "M2M100Tokenizer",
      "MarianTokenizer",
      "MgpstrTokenizer",
      "MyT5Tokenizer",
      "PLBartTokenizer",
      "PerceiverTokenizer",
      "PhobertTokenizer",
      "Pop2PianoTokenizer",
      "ProphetNetTokenizer",
      "RoCBertTokenizer",
      "SiglipTokenizer",
      "Speech2TextTokenizer",
      "SpeechT5Tokenizer",
      "TapasTokenizer",
      "VitsTokenizer",
      "Wav2Vec2CTCTokenizer",
      "XLMTokenizer",
      "Wav2Vec2PhonemeCTCTokenizer",
  };
  return std::ranges::find(kInPython, name) == std::end(kInPython) ? nullptr : kPython;
}

// Classes without a constructor of their own use the file as it is written, and their base's named
// tokens; those of BERT its ends too.
void apply_inherited_rules(const std::string& tokenizer_class, ClassBuilder& b) {
  if (tokenizer_class == "ConvBertTokenizer") {
    b.rules.default_specials = bert_specials();
    b.rules.post_processor = bert_ends();
  } else if (tokenizer_class == "FNetTokenizer") {
    b.rules.default_specials = bracket_specials("<unk>", "<pad>");
  }
}

void (*find_constructor(const std::string& tokenizer_class))(ClassBuilder&) {
  for (const ClassTable* classes :
       {&byte_classes(), &sentence_classes(), &language_classes(), &word_classes()}) {
    if (const auto it = classes->find(tokenizer_class); it != classes->end()) return it->second;
  }
  return nullptr;
}

}  // namespace

void require_described_class(const std::string& tokenizer_class, bool has_tokenizer_json,
                             const std::string& subject) {
  const char* reason = reason_to_refuse(tokenizer_class);
  if (reason == nullptr) return;
  throw FormatError(
      "{}: found tokenizer_class \"{}\", {}, expected a class that tokenizer.json describes; if {} "
      "right for the model, set tokenizer_class to PreTrainedTokenizerFast in "
      "tokenizer_config.json",
      subject, tokenizer_class, reason,
      has_tokenizer_json ? "that file is" : "you have such a file that is");
}

ClassRules apply_class_rules(const std::string& tokenizer_class, const Json& settings,
                             Json& document, const std::string& subject) {
  ClassRules rules{.name = tokenizer_class};
  ClassBuilder builder{settings, document, rules, subject};
  const auto written = document.find("post_processor");
  const bool has_post_processor = written != document.end() && !written->is_null();
  if (tokenizer_class == "WhisperTokenizer" && !builder.text("language", "").empty()) {
    throw FormatError(
        "{}: found \"language\" in tokenizer_config.json, expected none; text to train on names "
        "its language itself",
        subject);
  }
  if (const auto construct = find_constructor(tokenizer_class)) {
    construct(builder);
  } else {
    apply_inherited_rules(tokenizer_class, builder);
    rules.name.clear();
  }
  const bool applies =
      rules.post_processor_applies == ClassRules::Applies::kAlways ||
      (rules.post_processor_applies == ClassRules::Applies::kIfFileHasOne) == has_post_processor;
  if (!applies) rules.post_processor = nullptr;
  return rules;
}

bool maps_pieces(const std::string& tokenizer_class) {
  return tokenizer_class == "M2M100Tokenizer" || tokenizer_class == "MarianTokenizer";
}

bool has_class_rules(const std::string& tokenizer_class) {
  return find_constructor(tokenizer_class) != nullptr;
}

bool is_sentencepiece_class(const std::string& tokenizer_class) {
  return sentence_classes().contains(tokenizer_class) ||
         language_classes().contains(tokenizer_class);
}

}  // namespace strata::text
