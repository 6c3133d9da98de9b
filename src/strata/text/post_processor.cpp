// TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing and Sequence.
#include "strata/text/post_processor.h"

#include <algorithm>

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

 private:
  static bool is_space(std::string_view token, size_t at) {
    const char32_t c = decode_char(token, at);
    return c == 0x120 || is_white_space(c);  // U+0120 is the byte character of the space
  }
  bool add_prefix_space_;
};

// Special tokens before and after the sequence.
class Template : public PostProcessor {
 public:
  Template(std::vector<int32_t> before, std::vector<int32_t> after)
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

class Sequence : public PostProcessor {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PostProcessor>> steps) : steps_(std::move(steps)) {}
  void process(const EncodedText& encoded, bool add_special_tokens,
               std::vector<Token>& tokens) const override {
    for (const auto& step : steps_) step->process(encoded, add_special_tokens, tokens);
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

std::unique_ptr<PostProcessor> make_template(const Json& json, const std::string& where) {
  std::vector<int32_t> parts[2];
  bool is_after = false;
  const Json& specials = require_field(json, "special_tokens", where);
  for (const Json& piece : require_field(json, "single", where)) {
    if (piece.contains("Sequence")) {
      if (is_after) throw FormatError("{}: found two sequences in \"single\", expected one", where);
      is_after = true;
      continue;
    }
    const std::string name =
        required_string(require_field(piece, "SpecialToken", where), "id", where);
    const Json& special = require_field(specials, name.c_str(), where + ".special_tokens");
    for (const Json& id : require_field(special, "ids", where)) {
      parts[is_after].push_back(checked_id(id, where));
    }
  }
  if (!is_after) throw FormatError("{}: found no sequence in \"single\", expected $A", where);
  return std::make_unique<Template>(parts[0], parts[1]);
}

// {"cls": ["<s>", 0], "sep": ["</s>", 2]}
std::unique_ptr<PostProcessor> make_cls_sep(const Json& json, const std::string& where) {
  const auto id_of = [&](const char* key) {
    const Json& pair = require_field(json, key, where);
    if (!pair.is_array() || pair.size() != 2) {
      throw FormatError("{}: found {} for \"{}\", expected [token, id]", where, pair.dump(), key);
    }
    return checked_id(pair[1], where);
  };
  return std::make_unique<Template>(std::vector{id_of("cls")}, std::vector{id_of("sep")});
}

}  // namespace

std::unique_ptr<PostProcessor> make_post_processor(const Json& json, const std::string& where) {
  if (json.is_null()) return nullptr;
  const std::string type = component_type(json, where);
  std::vector<std::unique_ptr<PostProcessor>> steps;
  if (type == "TemplateProcessing") return make_template(json, where);
  if (type == "BertProcessing") return make_cls_sep(json, where);
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    if (bool_field(json, "trim_offsets", true, where)) {
      steps.push_back(
          std::make_unique<TrimRanges>(bool_field(json, "add_prefix_space", true, where)));
    }
    if (type == "RobertaProcessing") steps.push_back(make_cls_sep(json, where));
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
