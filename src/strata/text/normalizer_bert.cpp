// The steps of BertNormalizer, StripAccents and Nmt: one character at a time.
#include <optional>

#include "strata/text/component_json.h"
#include "strata/text/normalizer.h"
#include "strata/text/old_unicode.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

// Removes, replaces or surrounds single characters.
class PerCharacter : public Normalizer {
 public:
  enum class Action { kKeep, kRemove, kSpace, kSurround };
  explicit PerCharacter(Action (*choose)(char32_t)) : choose_(choose) {}

  Piece apply(const Piece& piece, Arena& arena) const override {
    size_t done = 0;
    std::optional<Rewriter> rewriter;
    for (size_t i = 0; i < piece.text.size();) {
      const size_t next = i + char_length(piece.text, i);
      const Action action = choose_(decode_char(piece.text, i));
      if (action != Action::kKeep) {
        if (!rewriter) rewriter.emplace(piece, arena);
        rewriter->keep(done, i);
        if (action == Action::kSpace) rewriter->replace(" ", i, next);
        if (action == Action::kSurround) {
          rewriter->replace(" ", i, next);
          rewriter->keep(i, next);
          rewriter->replace(" ", i, next);
        }
        done = next;
      }
      i = next;
    }
    if (!rewriter) return piece;
    rewriter->keep(done, piece.text.size());
    return rewriter->finish();
  }

 private:
  Action (*choose_)(char32_t);
};

using Action = PerCharacter::Action;

Action clean_text(char32_t c) {
  if (c == 0 || is_old_control(c)) return Action::kRemove;
  return c != ' ' && is_white_space(c) ? Action::kSpace : Action::kKeep;
}

Action surround_chinese(char32_t c) {
  const bool is_chinese = (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
                          (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) ||
                          (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
                          (c >= 0x2F800 && c <= 0x2FA1F);
  return is_chinese ? Action::kSurround : Action::kKeep;
}

Action remove_nonspacing(char32_t c) {
  return is_old_nonspacing_mark(c) ? Action::kRemove : Action::kKeep;
}

Action remove_marks(char32_t c) { return is_old_mark(c) ? Action::kRemove : Action::kKeep; }

Action nmt(char32_t c) {
  const bool is_removed = (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F ||
                          c == 0x8F || c == 0x9F;
  if (is_removed) return Action::kRemove;
  const bool is_space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                        (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                        c == 0xFEFF || c == 0xFFFD;
  return is_space ? Action::kSpace : Action::kKeep;
}

}  // namespace

std::unique_ptr<Normalizer> make_strip_accents() {
  return std::make_unique<PerCharacter>(remove_marks);
}

std::unique_ptr<Normalizer> make_nmt() { return std::make_unique<PerCharacter>(nmt); }

std::vector<std::unique_ptr<Normalizer>> make_bert_steps(const Json& json,
                                                         const std::string& where) {
  std::vector<std::unique_ptr<Normalizer>> steps;
  const bool lowercase = bool_field(json, "lowercase", true, where);
  if (bool_field(json, "clean_text", true, where)) {
    steps.push_back(std::make_unique<PerCharacter>(clean_text));
  }
  if (bool_field(json, "handle_chinese_chars", true, where)) {
    steps.push_back(std::make_unique<PerCharacter>(surround_chinese));
  }
  if (bool_field(json, "strip_accents", lowercase, where)) {
    steps.push_back(make_normalizer({{"type", "NFD"}}, where));
    steps.push_back(std::make_unique<PerCharacter>(remove_nonspacing));
  }
  if (lowercase) steps.push_back(make_normalizer({{"type", "Lowercase"}}, where));
  return steps;
}

}  // namespace strata::text
