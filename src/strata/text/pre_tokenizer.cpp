// ByteLevel, Split, Metaspace and Sequence.
#include "strata/text/pre_tokenizer.h"

#include "strata/base/error.h"
#include "strata/text/byte_level.h"
#include "strata/text/component_json.h"
#include "strata/text/pattern.h"
#include "strata/text/split_behavior.h"
#include "strata/text/split_fast.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

class Split : public PreTokenizer {
 public:
  Split(Regex pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)),
        fast_(find_fast_split(pattern_.pattern())),
        behavior_(behavior),
        invert_(invert) {}

  void split(const Piece& piece, Arena&, std::vector<Piece>& out) const override {
    if (fast_ != nullptr && behavior_ == Behavior::kIsolated) return fast_(piece, out);
    split_at(piece, pattern_.find_all(piece.text), behavior_, invert_, out);
  }

 private:
  Regex pattern_;
  FastSplit fast_;
  Behavior behavior_;
  bool invert_;
};

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex)
      : add_prefix_space_(add_prefix_space), use_regex_(use_regex) {}

  bool defer_byte_characters() override { return is_deferred_ = true; }

  void split(const Piece& piece, Arena& arena, std::vector<Piece>& out) const override {
    Piece text = piece;
    if (add_prefix_space_ && !piece.text.starts_with(' ')) {
      Rewriter rewriter(piece, arena);
      rewriter.replace(" ", 0, 0);
      rewriter.keep(0, piece.text.size());
      text = rewriter.finish();
    }
    const size_t first = out.size();
    if (use_regex_) {
      split_gpt2(text, out);
    } else if (!text.text.empty()) {
      out.push_back(text);
    }
    for (size_t i = first; i < out.size() && !is_deferred_; ++i) {
      Rewriter rewriter(out[i], arena);
      for (size_t k = 0; k < out[i].text.size(); ++k) {
        rewriter.replace(bytes_to_characters(out[i].text.substr(k, 1)), k, k + 1);
      }
      out[i] = rewriter.finish();
    }
  }

 private:
  bool add_prefix_space_, use_regex_;
  bool is_deferred_ = false;
};

class Metaspace : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(std::string replacement, Prepend prepend, bool cuts)
      : replacement_(std::move(replacement)), prepend_(prepend), cuts_(cuts) {}

  void split(const Piece& piece, Arena& arena, std::vector<Piece>& out) const override {
    if (piece.text.empty()) return;
    Rewriter rewriter(piece, arena);
    const bool wants_prefix =
        prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.input_begin(0) == 0);
    if (wants_prefix && !piece.text.starts_with(replacement_) && !piece.text.starts_with(' ')) {
      rewriter.replace(replacement_, 0, 0);
    }
    size_t done = 0;
    for (size_t i = piece.text.find(' '); i != std::string_view::npos;
         i = piece.text.find(' ', done)) {
      rewriter.keep(done, i);
      rewriter.replace(replacement_, i, i + 1);
      done = i + 1;
    }
    rewriter.keep(done, piece.text.size());
    const Piece text = rewriter.finish();
    if (!cuts_) return out.push_back(text);
    size_t begin = 0;
    while (begin < text.text.size()) {
      const size_t next = std::min(text.text.find(replacement_, begin + 1), text.text.size());
      out.push_back(text.sub(begin, next));
      begin = next;
    }
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool cuts_;
};

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}
  bool defer_byte_characters() override {
    return !steps_.empty() && steps_.back()->defer_byte_characters();
  }
  void split(const Piece& piece, Arena& arena, std::vector<Piece>& out) const override {
    if (steps_.empty()) return out.push_back(piece);
    if (steps_.size() == 1) return steps_[0]->split(piece, arena, out);
    std::vector<Piece> current{piece};
    for (size_t i = 0; i < steps_.size(); ++i) {
      std::vector<Piece> next;
      std::vector<Piece>& into = i + 1 == steps_.size() ? out : next;
      into.reserve(into.size() + current.size());
      for (const Piece& part : current) steps_[i]->split(part, arena, into);
      current = std::move(next);
    }
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

std::unique_ptr<PreTokenizer> make_metaspace(const Json& json, const std::string& where) {
  auto scheme = string_field(json, "prepend_scheme", where).value_or("always");
  // Files older than prepend_scheme say it with add_prefix_space.
  if (!bool_field(json, "add_prefix_space", true, where)) scheme = "never";
  using Prepend = Metaspace::Prepend;
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    throw FormatError("{}: found prepend_scheme \"{}\", expected always, first or never", where,
                      scheme);
  }
  const auto prepend = scheme == "always"  ? Prepend::kAlways
                       : scheme == "first" ? Prepend::kFirst
                                           : Prepend::kNever;
  const std::string replacement = required_string(json, "replacement", where);
  if (replacement.empty())
    throw FormatError("{}: found no replacement, expected a character", where);
  return std::make_unique<Metaspace>(replacement, prepend, bool_field(json, "split", true, where));
}

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& json, const std::string& where) {
  if (json.is_null()) return nullptr;
  const std::string type = component_type(json, where);
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(bool_field(json, "add_prefix_space", true, where),
                                       bool_field(json, "use_regex", true, where));
  }
  if (type == "Split") {
    return std::make_unique<Split>(make_pattern(require_field(json, "pattern", where), where),
                                   make_behavior(required_string(json, "behavior", where), where),
                                   bool_field(json, "invert", false, where));
  }
  if (auto made = make_character_splitter(type, json, where)) return made;
  if (type == "Metaspace") return make_metaspace(json, where);
  if (type == "Sequence") {
    std::vector<std::unique_ptr<PreTokenizer>> steps;
    for (const Json& step : require_field(json, "pretokenizers", where)) {
      if (auto made = make_pre_tokenizer(step, where + ".pretokenizers")) {
        steps.push_back(std::move(made));
      }
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  throw_unsupported(type, where,
                    "ByteLevel, Split, Metaspace, Whitespace, WhitespaceSplit, BertPreTokenizer, "
                    "Punctuation, Digits, CharDelimiterSplit, FixedLength, UnicodeScripts, "
                    "Sequence");
}

}  // namespace strata::text
