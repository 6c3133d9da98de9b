#include "strata/text/classes/pieces.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "strata/base/error.h"
#include "strata/text/classes/builder.h"
#include "strata/text/classes/language_codes.h"
#include "strata/text/classes/rules.h"
#include "strata/text/classes/tokenizer_class.h"

namespace strata::text {
namespace {

// Pieces that a class puts before or after those of the file.
struct Added {
  enum class Form { kToken, kOptionalToken, kNumbersUp, kNumbersDown, kNames };
  std::string_view content;       // of the token, before the number, or names with spaces between
  const char* setting = nullptr;  // its token stands for `content`, its number for `end`
  double score = 0;
  Form form = Form::kToken;
  size_t begin = 0, end = 0;  // numbers, in "content" + number + ">"
};

// A token that is left out where the setting is null or names a token that is there already.
Added optional_token(std::string_view content, const char* setting) {
  return {.content = content, .setting = setting, .form = Added::Form::kOptionalToken};
}

Added names(std::string_view list) { return {.content = list, .form = Added::Form::kNames}; }

enum class Model { kOfFile, kBpe, kUnigram };

// Where the control and user-defined pieces of the file stand among the class's additional tokens.
enum class Joins { kInPlace, kBefore, kBehind, kNowhere };

}  // namespace

struct PieceRule {
  std::string_view tokenizer_class;
  Model model = Model::kOfFile;
  bool is_plain = false;
  Joins joins = Joins::kInPlace;
  std::vector<Added> first = {};
  size_t num_replaced = 0;           // pieces of the file that `first` stands for: its first ones
  bool replaces_same_texts = false;  // those with the texts of `first`
  std::vector<Added> last = {};
};

namespace {

// The order of fairseq, over that of SentencePiece.
std::vector<Added> fairseq_first(const char* begin_setting) {
  return {{"<s>", begin_setting},
          {"<pad>", "pad_token"},
          {"</s>", "eos_token"},
          {"<unk>", "unk_token"}};
}

const Added kMask = {"<mask>", "mask_token"};
const Added kExtraIds = {
    .content = "<extra_id_", .setting = "extra_ids", .form = Added::Form::kNumbersDown, .end = 100};

const std::vector<PieceRule>& rules() {
  using enum Model;
  using enum Joins;
  static const std::vector<PieceRule> table = {
      {.tokenizer_class = kFileAsIs, .is_plain = true},
      {.tokenizer_class = "FNetTokenizer", .model = kUnigram, .is_plain = true},
      {.tokenizer_class = "LlamaTokenizer", .model = kBpe},
      {.tokenizer_class = "CodeLlamaTokenizer", .model = kBpe},
      {.tokenizer_class = "GemmaTokenizer", .model = kBpe},
      {.tokenizer_class = "ReformerTokenizer", .model = kBpe},
      {.tokenizer_class = "Siglip2Tokenizer", .model = kBpe},
      {.tokenizer_class = "Tipsv2Tokenizer", .model = kBpe},
      {.tokenizer_class = "AlbertTokenizer", .model = kUnigram},
      {.tokenizer_class = "BarthezTokenizer"},
      {.tokenizer_class = "BigBirdTokenizer", .model = kUnigram},
      {.tokenizer_class = "DebertaV2Tokenizer", .model = kUnigram},
      {.tokenizer_class = "LasrTokenizer", .model = kUnigram, .joins = kBefore},
      {.tokenizer_class = "RemBertTokenizer", .model = kUnigram},
      {.tokenizer_class = "UdopTokenizer", .model = kUnigram},
      {.tokenizer_class = "XLNetTokenizer", .model = kUnigram},
      {.tokenizer_class = "T5Tokenizer", .model = kUnigram, .joins = kBefore, .last = {kExtraIds}},
      {.tokenizer_class = "VideoPrismTokenizer",
       .model = kUnigram,
       .joins = kBefore,
       .last = {kExtraIds}},
      {.tokenizer_class = "XLMRobertaTokenizer",
       .model = kUnigram,
       .first = fairseq_first("bos_token"),
       .num_replaced = 3,
       .last = {kMask}},
      {.tokenizer_class = "LayoutXLMTokenizer",
       .model = kUnigram,
       .first = fairseq_first("bos_token"),
       .num_replaced = 3,
       .last = {kMask}},
      {.tokenizer_class = "CamembertTokenizer",
       .first = {{"<s>NOTUSED"},
                 {"<pad>", "pad_token"},
                 {"</s>NOTUSED"},
                 {"<unk>", "unk_token"},
                 {.content = "<unk>NOTUSED", .score = -100}},
       .num_replaced = 1,
       .last = {kMask}},
      // Their ids are another file's.
      {.tokenizer_class = "M2M100Tokenizer", .joins = kNowhere},
      {.tokenizer_class = "MarianTokenizer", .joins = kNowhere},
      {.tokenizer_class = "MBartTokenizer",
       .model = kUnigram,
       .joins = kBehind,
       .first = fairseq_first("bos_token"),
       .num_replaced = 3,
       .last = {names(kMbartCodes), kMask}},
      {.tokenizer_class = "MBart50Tokenizer",
       .model = kUnigram,
       .joins = kBefore,
       .first = fairseq_first("cls_token"),
       .num_replaced = 3,
       .last = {names(kMbartCodes), names(kMoreMbart50Codes), kMask}},
      {.tokenizer_class = "NllbTokenizer",
       .model = kBpe,
       .first = fairseq_first("bos_token"),
       .replaces_same_texts = true},
      {.tokenizer_class = "SeamlessM4TTokenizer", .model = kBpe, .first = {{"<pad>"}}},
      {.tokenizer_class = "PegasusTokenizer",
       .model = kUnigram,
       .joins = kNowhere,
       .first = {{"<pad>", "pad_token"},
                 {"</s>", "eos_token"},
                 optional_token("<mask_1>", "mask_token"),
                 optional_token("<mask_2>", "mask_token_sent"),
                 {.content = "<unk_",
                  .setting = "offset",
                  .score = -100,
                  .form = Added::Form::kNumbersUp,
                  .begin = 2,
                  .end = 103}},
       .num_replaced = 2},
      // AutoTokenizer overlooks this class's model file; these are the ids of its converter.
      {.tokenizer_class = "XGLMTokenizer",
       .model = kUnigram,
       .joins = kBefore,
       .first = {{"<s>"}, {"<pad>"}, {"</s>"}, {"<unk>"}},
       .num_replaced = 3,
       .last = {{.content = "<madeupword", .form = Added::Form::kNumbersUp, .end = 7}}},
  };
  return table;
}

void append_numbered(const Added& added, size_t end, std::vector<ScoredPiece>& pieces) {
  const bool is_down = added.form == Added::Form::kNumbersDown;
  for (size_t i = added.begin; i < end; ++i) {
    const size_t number = is_down ? end - 1 - (i - added.begin) : i;
    pieces.push_back({std::string(added.content) + std::to_string(number) + ">", added.score});
  }
}

void append(const Added& added, const ClassBuilder& settings, std::vector<ScoredPiece>& pieces) {
  const std::string content(added.content);
  const auto has = [&](const std::string& text) {
    return std::ranges::any_of(pieces, [&](const auto& piece) { return piece.text == text; });
  };
  const std::string token = added.setting ? settings.text(added.setting, content) : content;
  switch (added.form) {
    case Added::Form::kToken:
      pieces.push_back({token, added.score});
      break;
    case Added::Form::kOptionalToken:
      if (!settings.is_null(added.setting) && !has(token)) pieces.push_back({token, added.score});
      break;
    case Added::Form::kNumbersUp:
    case Added::Form::kNumbersDown:
      append_numbered(added, added.setting ? settings.number(added.setting, added.end) : added.end,
                      pieces);
      break;
    case Added::Form::kNames:
      for (const Json& name : listed_codes(added.content)) pieces.push_back({name, added.score});
      break;
  }
}

bool has_content(const Json& tokens, const Json& token) {
  const auto content = [](const Json& json) { return json.is_object() ? json["content"] : json; };
  return std::ranges::any_of(tokens,
                             [&](const Json& other) { return content(other) == content(token); });
}

}  // namespace

const PieceRule& find_piece_rule(const std::string& tokenizer_class, const std::string& folder) {
  const auto& table = rules();
  const auto rule = std::ranges::find(table, tokenizer_class, &PieceRule::tokenizer_class);
  if (rule != table.end()) return *rule;
  if (!has_class_rules(tokenizer_class)) return table.front();
  throw FormatError(
      "{}: found tokenizer_class \"{}\" with a SentencePiece model and no tokenizer.json, expected "
      "that file; load the tokenizer with transformers and save it",
      folder, tokenizer_class);
}

bool has_plain_pipeline(const PieceRule& rule) { return rule.is_plain; }

bool makes_bpe(const PieceRule& rule, bool file_is_bpe) {
  return rule.model == Model::kOfFile ? file_is_bpe : rule.model == Model::kBpe;
}

std::vector<ScoredPiece> pieces_of_class(const PieceRule& rule, const Json& settings,
                                         const std::vector<ScoredPiece>& of_file) {
  Json document;
  ClassRules class_rules;
  const std::string subject = "tokenizer_config.json";
  const ClassBuilder reader{settings, document, class_rules, subject};
  std::vector<ScoredPiece> pieces;
  for (const Added& added : rule.first) append(added, reader, pieces);
  const size_t num_first = pieces.size();
  for (size_t i = rule.num_replaced; i < of_file.size(); ++i) {
    const auto first = std::span(pieces).first(num_first);
    const bool is_there =
        rule.replaces_same_texts &&
        std::ranges::find(first, of_file[i].text, &ScoredPiece::text) != first.end();
    if (!is_there) pieces.push_back(of_file[i]);
  }
  for (const Added& added : rule.last) append(added, reader, pieces);
  return pieces;
}

Json additional_tokens_of_class(const PieceRule& rule, Json of_file, const Json& of_class) {
  if (rule.joins == Joins::kNowhere) return of_class;
  if (rule.joins == Joins::kInPlace) return of_file;
  Json tokens = rule.joins == Joins::kBefore ? std::move(of_file) : of_class;
  for (const Json& token : rule.joins == Joins::kBefore ? of_class : of_file) {
    if (!has_content(tokens, token)) tokens.push_back(token);
  }
  return tokens;
}

}  // namespace strata::text
