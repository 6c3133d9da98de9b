#include "strata/data/files/split_spec.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "strata/base/error.h"

namespace strata::data {
namespace {

std::string trimmed(std::string text) {
  text.erase(0, text.find_first_not_of(" \t"));
  text.erase(text.find_last_not_of(" \t") + 1);
  return text;
}

std::vector<std::string> cut(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

class PartParser {
 public:
  explicit PartParser(const std::string& specification) : specification_(specification) {}

  SplitPart parse(const std::string& text) const {
    SplitPart part;
    const size_t open = text.find('[');
    part.split = text.substr(0, open);
    const bool is_word = !part.split.empty() && std::ranges::all_of(part.split, [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
    });
    if (!is_word) refuse("the name of a split");
    if (open == std::string::npos) return part;
    const std::string slice = text.substr(open + 1);
    const size_t colon = slice.find(':');
    if (!slice.ends_with(']') || colon == std::string::npos) refuse("a slice like [100:200]");
    bool from_percent = false, to_percent = false;
    part.from = bound(slice.substr(0, colon), from_percent);
    part.to = bound(slice.substr(colon + 1, slice.size() - colon - 2), to_percent);
    part.is_percent = from_percent || to_percent;
    if ((part.from && part.to && from_percent != to_percent)) refuse("two bounds of one kind");
    for (const auto& value : {part.from, part.to}) {
      if (part.is_percent && value && std::abs(*value) > 100) refuse("percent from -100 to 100");
    }
    return part;
  }

 private:
  [[noreturn]] void refuse(const std::string& expected) const {
    throw ConfigError(
        "splits: found \"{}\", expected {}; write train, train[:10%] or "
        "train[100:200]+test",
        specification_, expected);
  }

  std::optional<int64_t> bound(std::string text, bool& is_percent) const {
    text = trimmed(text);
    is_percent = text.ends_with('%');
    if (is_percent) text.pop_back();
    std::erase(text, '_');
    if (text.empty() && !is_percent) return std::nullopt;
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) refuse("whole numbers as bounds");
    return value;
  }

  const std::string& specification_;
};

}  // namespace

std::pair<int64_t, int64_t> SplitPart::range(int64_t num_rows) const {
  const auto absolute = [&](const std::optional<int64_t>& bound, int64_t missing) {
    if (!bound) return missing;
    int64_t at = *bound;
    if (is_percent) {
      // nearbyint rounds halves to even, as Python's round.
      at = static_cast<int64_t>(std::nearbyint(static_cast<double>(*bound * num_rows) / 100.0));
    }
    if (at < 0) at = std::max<int64_t>(num_rows + at, 0);
    return std::min(at, num_rows);
  };
  const int64_t begin = absolute(from, 0);
  return {begin, std::max(begin, absolute(to, num_rows))};
}

std::vector<SplitPart> parse_split(const std::string& specification) {
  const PartParser parser(specification);
  std::vector<SplitPart> parts;
  for (const std::string& part : cut(specification, '+')) parts.push_back(parser.parse(part));
  return parts;
}

std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> parts = cut(list, ',');
  std::erase(parts, "");
  return parts;
}

}  // namespace strata::data
