// TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing and Sequence.
#include "strata/text/post_processor.h"

#include <algorithm>
#include <optional>

#include "strata/base/error.h"
#include "strata/text/component_json.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

// Takes the spaces at both ends of each token out of its range, as ByteLevel(trim_offsets) does.
class TrimRanges : public PostProcessor {
 public:
  explicit TrimRanges(bool add_prefix_space) : add_prefix_space_(add_prefix_space) {}

  void process(const EncodedText& encoded, bool, std::vector<Token>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string_view token = encoded.token_text(tokens[i]);
      size_t leading = 0, trailing = 0;
      for (size_t at = 0; at < token.size() && is_space(token, at); at += char_length(token, at)) {
        ++leading;
      }
      for (size_t end = token.size(); end > 0 && is_space(token, previous_char(token, end));
           end = previous_char(token, end)) {
        ++trailing;
      }
      // A single space at the begin is taken for the one that the pre-tokenizer added, which has no
      // range to take away; it adds none before others.
      if (leading == 1 && add_prefix_space_ && (i == 0 || tokens[i].begin == 0)) leading = 0;
      Token& range = tokens[i];
      for (; leading > 0 && range.begin < range.end; --leading) {
        range.begin = std::min(
            range.begin + static_cast<uint32_t>(char_length(encoded.text, range.begin)), range.end);
      }
      for (; trailing > 0 && range.end > range.begin; --trailing) {
        range.end = static_cast<uint32_t>(previous_char(encoded.text, range.end));
      }
    }
  }
  void join(std::vector<TypedIds>&) const override {}

 private:
  static bool is_space(std::string_view token, size_t at) {
    const char32_t c = decode_char(token, at);
    return c == 0x120 || is_white_space(c);  // U+0120 is the byte character of the space
  }
  bool add_prefix_space_;
};

// Special tokens before and after the sequence.
class Ends : public PostProcessor {
 public:
  Ends(std::vector<int32_t> before, std::vector<int32_t> after)
      : before_(std::move(before)), after_(std::move(after)) {}

  void process(const EncodedText&, bool add_special_tokens,
               std::vector<Token>& tokens) const override {
    if (!add_special_tokens) return;
    std::vector<Token> front;
    for (const int32_t id : before_) front.push_back({id, 0, 0});
    tokens.insert(tokens.begin(), front.begin(), front.end());
    for (const int32_t id : after_) tokens.push_back({id, 0, 0});
  }

 private:
  std::vector<int32_t> before_, after_;
};

void append(const std::vector<int32_t>& ids, uint8_t type, TypedIds& to) {
  to.ids.insert(to.ids.end(), ids.begin(), ids.end());
  to.types.insert(to.types.end(), ids.size(), type);
}

// A text, or special tokens, of a template.
struct TemplatePiece {
  std::optional<size_t> text;  // 0: $A, 1: $B
  std::vector<int32_t> ids;
  uint8_t type = 0;
};

class Template : public Ends {
 public:
  // `pair`: nothing where the file has none.
  Template(std::vector<int32_t> before, std::vector<int32_t> after,
           std::optional<std::vector<TemplatePiece>> pair, std::string where)
      : Ends(std::move(before), std::move(after)),
        pair_(std::move(pair)),
        where_(std::move(where)) {}

  void join(std::vector<TypedIds>& parts) const override {
    if (!pair_) throw FormatError("{}: found no \"pair\", expected one for two texts", where_);
    if (parts.size() != 2) {
      throw FormatError("{}: found a second template, expected one for two texts", where_);
    }
    std::vector<TypedIds> joined(pair_->size());
    for (size_t i = 0; i < joined.size(); ++i) {
      const TemplatePiece& piece = (*pair_)[i];
      append(piece.text ? parts[*piece.text].ids : piece.ids, piece.type, joined[i]);
    }
    parts = std::move(joined);
  }

 private:
  std::optional<std::vector<TemplatePiece>> pair_;
  std::string where_;
};

// BERT's and RoBERTa's: the latter puts two separators between texts, all of one type.
class ClsSep : public Ends {
 public:
  ClsSep(int32_t cls, int32_t sep, bool doubles_sep)
      : Ends({cls}, {sep}), cls_(cls), sep_(sep), doubles_sep_(doubles_sep) {}

  void join(std::vector<TypedIds>& parts) const override {
    for (size_t i = 0; i < parts.size(); ++i) {
      const uint8_t type = i > 0 && !doubles_sep_ ? 1 : 0;
      TypedIds part;
      if (i == 0 || doubles_sep_) append({i == 0 ? cls_ : sep_}, type, part);
      append(parts[i].ids, type, part);
      append({sep_}, type, part);
      parts[i] = std::move(part);
    }
  }

 private:
  int32_t cls_, sep_;
  bool doubles_sep_;
};

class Sequence : public PostProcessor {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PostProcessor>> steps) : steps_(std::move(steps)) {}
  void process(const EncodedText& encoded, bool add_special_tokens,
               std::vector<Token>& tokens) const override {
    for (const auto& step : steps_) step->process(encoded, add_special_tokens, tokens);
  }
  void join(std::vector<TypedIds>& parts) const override {
    for (const auto& step : steps_) step->join(parts);
  }

 private:
  std::vector<std::unique_ptr<PostProcessor>> steps_;
};

int32_t checked_id(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || value < 0 || value > INT32_MAX) {
    throw FormatError("{}: found id {}, expected a token id", where, value.dump());
  }
  return value.get<int32_t>();
}

uint8_t type_of(const Json& piece, const std::string& where) {
  const int64_t type = int_field(piece, "type_id", 0, where);
  if (type >= 0 && type <= UINT8_MAX) return static_cast<uint8_t>(type);
  throw FormatError("{}: found type_id {}, expected 0 to {}", where, type, UINT8_MAX);
}

std::vector<TemplatePiece> read_pieces(const Json& list, const Json& specials,
                                       const std::string& where) {
  std::vector<TemplatePiece> pieces;
  for (const Json& json : list) {
    TemplatePiece& piece = pieces.emplace_back();
    if (json.contains("Sequence")) {
      const Json& sequence = json.at("Sequence");
      const std::string name = string_field(sequence, "id", where).value_or("A");
      if (name != "A" && name != "B") {
        throw FormatError("{}: found sequence \"{}\", expected A or B", where, name);
      }
      piece.text = name == "A" ? 0 : 1;
      piece.type = type_of(sequence, where);
      continue;
    }
    const Json& token = require_field(json, "SpecialToken", where);
    const std::string name = required_string(token, "id", where);
    const Json& special = require_field(specials, name.c_str(), where + ".special_tokens");
    for (const Json& id : require_field(special, "ids", where)) {
      piece.ids.push_back(checked_id(id, where));
    }
    piece.type = type_of(token, where);
  }
  return pieces;
}

std::unique_ptr<PostProcessor> make_template(const Json& json, const std::string& where) {
  const Json& specials = require_field(json, "special_tokens", where);
  std::vector<int32_t> parts[2];
  bool is_after = false;
  for (const TemplatePiece& piece :
       read_pieces(require_field(json, "single", where), specials, where)) {
    if (piece.text) {
      if (is_after) throw FormatError("{}: found two sequences in \"single\", expected one", where);
      is_after = true;
    }
    parts[is_after].insert(parts[is_after].end(), piece.ids.begin(), piece.ids.end());
  }
  if (!is_after) throw FormatError("{}: found no sequence in \"single\", expected $A", where);
  std::optional<std::vector<TemplatePiece>> pair;
  if (const auto written = json.find("pair"); written != json.end() && !written->is_null()) {
    pair = read_pieces(*written, specials, where);
  }
  return std::make_unique<Template>(parts[0], parts[1], std::move(pair), where);
}

// {"cls": ["<s>", 0], "sep": ["</s>", 2]}
std::unique_ptr<PostProcessor> make_cls_sep(const Json& json, bool doubles_sep,
                                            const std::string& where) {
  const auto id_of = [&](const char* key) {
    const Json& pair = require_field(json, key, where);
    if (!pair.is_array() || pair.size() != 2) {
      throw FormatError("{}: found {} for \"{}\", expected [token, id]", where, pair.dump(), key);
    }
    return checked_id(pair[1], where);
  };
  return std::make_unique<ClsSep>(id_of("cls"), id_of("sep"), doubles_sep);
}

}  // namespace

std::unique_ptr<PostProcessor> make_post_processor(const Json& json, const std::string& where) {
  if (json.is_null()) return nullptr;
  const std::string type = component_type(json, where);
  std::vector<std::unique_ptr<PostProcessor>> steps;
  if (type == "TemplateProcessing") return make_template(json, where);
  if (type == "BertProcessing") return make_cls_sep(json, /*doubles_sep=*/false, where);
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    if (bool_field(json, "trim_offsets", true, where)) {
      steps.push_back(
          std::make_unique<TrimRanges>(bool_field(json, "add_prefix_space", true, where)));
    }
    if (type == "RobertaProcessing") {
      steps.push_back(make_cls_sep(json, /*doubles_sep=*/true, where));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  if (type == "Sequence") {
    for (const Json& step : require_field(json, "processors", where)) {
      if (auto made = make_post_processor(step, where + ".processors"))
        steps.push_back(std::move(made));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  throw_unsupported(type, where,
                    "TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing, Sequence");
}

}  // namespace strata::text
