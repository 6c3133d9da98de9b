#include "strata/text/length_rules.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/text/component_json.h"

namespace strata::text {
namespace {

constexpr int64_t kMost = int64_t{1} << 31;

int64_t read_count(const Json& section, const char* key, int64_t fallback, int64_t low,
                   const std::string& where) {
  const int64_t count = int_field(section, key, fallback, where);
  if (count >= low && count < kMost) return count;
  throw FormatError("{}: found {} as \"{}\", expected {} to {}", where, count, key, low, kMost - 1);
}

bool is_left(const Json& section, const std::string& where) {
  const std::string direction = string_field(section, "direction", where).value_or("Right");
  if (direction == "Left" || direction == "Right") return direction == "Left";
  throw FormatError("{}: found direction \"{}\", expected Left or Right", where, direction);
}

Truncation read_truncation(const Json& section, const std::string& where) {
  Truncation truncation{.max_length = read_count(section, "max_length", -1, 0, where),
                        .from_left = is_left(section, where)};
  const std::string strategy = string_field(section, "strategy", where).value_or("LongestFirst");
  if (strategy != "LongestFirst" && strategy != "OnlyFirst") {
    throw FormatError("{}: found strategy \"{}\", expected LongestFirst or OnlyFirst for one text",
                      where, strategy);
  }
  return truncation;
}

Padding read_padding(const Json& section, const std::string& where) {
  Padding padding{.length = 0,
                  .multiple = read_count(section, "pad_to_multiple_of", 1, 0, where),
                  .id = static_cast<int32_t>(read_count(section, "pad_id", 0, 0, where)),
                  .on_left = is_left(section, where)};
  if (padding.multiple == 0) padding.multiple = 1;
  const Json& strategy = require_field(section, "strategy", where);
  if (strategy.is_object()) {
    padding.length = read_count(strategy, "Fixed", -1, 0, where + ": strategy");
  } else if (strategy != "BatchLongest") {
    throw FormatError("{}: found strategy {}, expected BatchLongest or {{\"Fixed\": length}}",
                      where, strategy.dump());
  }
  return padding;
}

}  // namespace

LengthRules read_length_rules(const Json& document, const std::string& subject) {
  LengthRules rules;
  const auto section = [&](const char* name) -> const Json* {
    const auto it = document.find(name);
    if (it == document.end() || it->is_null()) return nullptr;
    if (it->is_object()) return &*it;
    throw FormatError("{}: {}: found {}, expected an object or null", subject, name,
                      it->type_name());
  };
  if (const Json* json = section("truncation")) {
    rules.truncation = read_truncation(*json, subject + ": truncation");
  }
  if (const Json* json = section("padding")) {
    rules.padding = read_padding(*json, subject + ": padding");
  }
  return rules;
}

std::optional<int64_t> read_model_max_length(const Json& tokenizer_config,
                                             const std::string& folder) {
  if (!tokenizer_config.is_object()) return std::nullopt;
  const auto found = tokenizer_config.find("model_max_length");
  if (found == tokenizer_config.end() || found->is_null()) return std::nullopt;
  const double length = found->is_number() ? found->get<double>() : 0;
  if (!(length >= 1)) {
    throw FormatError(
        "{}/tokenizer_config.json: model_max_length: found {}, expected a positive number", folder,
        found->dump());
  }
  if (length >= static_cast<double>(kMost)) return std::nullopt;
  return static_cast<int64_t>(length);
}

bool truncates_from_left(const Json& tokenizer_config, const Json& document,
                         const std::string& folder) {
  if (tokenizer_config.is_object()) {
    const std::string where = folder + "/tokenizer_config.json";
    if (const auto side = string_field(tokenizer_config, "truncation_side", where)) {
      if (*side == "left" || *side == "right") return *side == "left";
      throw FormatError("{}: found truncation_side \"{}\", expected left or right", where, *side);
    }
  }
  const auto section = document.find("truncation");
  return section != document.end() && section->is_object() &&
         section->value("direction", Json()) == "Left";
}

std::pair<size_t, size_t> share_room(size_t first, size_t second, size_t room) {
  if (first + second <= room) return {first, second};
  const size_t shorter = std::min(first, second);
  const size_t half = room / 2;
  // The shorter one stays whole while there is as much for the other.
  const size_t less = std::min(shorter, half), more = room - less;
  return first > second ? std::pair{more, less} : std::pair{less, more};
}

void cut_to(size_t size, bool from_left, std::vector<Token>& tokens) {
  if (from_left) {
    tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(size));
  } else {
    tokens.resize(size);
  }
}

void truncate(const LengthRules& rules, int64_t num_added, const std::string& subject,
              std::vector<Token>& tokens) {
  if (!rules.truncation) return;
  const int64_t room = rules.truncation->max_length - num_added;
  if (room < 0) {
    throw FormatError(
        "{}: truncation: found max_length {}, expected at least the {} tokens that the "
        "post-processor adds",
        subject, rules.truncation->max_length, num_added);
  }
  if (static_cast<int64_t>(tokens.size()) <= room) return;
  cut_to(static_cast<size_t>(room), rules.truncation->from_left, tokens);
}

std::vector<uint8_t> pad(const LengthRules& rules, std::vector<Token>& tokens) {
  const size_t size = tokens.size();
  std::vector<uint8_t> mask(size, 1);
  if (!rules.padding) return mask;
  const Padding& padding = *rules.padding;
  const auto multiple = static_cast<size_t>(padding.multiple);
  size_t length = padding.length > 0 ? static_cast<size_t>(padding.length) : size;
  length = (length + multiple - 1) / multiple * multiple;
  if (length <= size) return mask;
  const size_t added = length - size;
  const Token token{.id = padding.id, .begin = 0, .end = 0};
  tokens.insert(padding.on_left ? tokens.begin() : tokens.end(), added, token);
  mask.insert(padding.on_left ? mask.begin() : mask.end(), added, 0);
  return mask;
}

}  // namespace strata::text
