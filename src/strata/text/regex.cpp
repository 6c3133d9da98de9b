// The only file that includes Oniguruma.
#include "strata/text/regex.h"

#include <oniguruma.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "strata/base/error.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

const OnigUChar* onig_chars(const char* text) { return reinterpret_cast<const OnigUChar*>(text); }

std::string error_text(int code, OnigErrorInfo* info) {
  OnigUChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length = info == nullptr ? onig_error_code_to_str(buffer, code)
                                     : onig_error_code_to_str(buffer, code, info);
  return {reinterpret_cast<const char*>(buffer), static_cast<size_t>(length)};
}

void initialize_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
}

OnigCtype property(const char* name) {
  initialize_once();
  OnigUChar* begin = const_cast<OnigUChar*>(onig_chars(name));
  return static_cast<OnigCtype>(
      ONIGENC_PROPERTY_NAME_TO_CTYPE(ONIG_ENCODING_UTF8, begin, begin + std::strlen(name)));
}

// The scripts of Unicode 9.
constexpr const char* kScripts[] = {"Common",
                                    "Inherited",
                                    "Latin",
                                    "Greek",
                                    "Cyrillic",
                                    "Armenian",
                                    "Hebrew",
                                    "Arabic",
                                    "Syriac",
                                    "Thaana",
                                    "Devanagari",
                                    "Bengali",
                                    "Gurmukhi",
                                    "Gujarati",
                                    "Oriya",
                                    "Tamil",
                                    "Telugu",
                                    "Kannada",
                                    "Malayalam",
                                    "Sinhala",
                                    "Thai",
                                    "Lao",
                                    "Tibetan",
                                    "Myanmar",
                                    "Georgian",
                                    "Hangul",
                                    "Ethiopic",
                                    "Cherokee",
                                    "Canadian_Aboriginal",
                                    "Ogham",
                                    "Runic",
                                    "Khmer",
                                    "Mongolian",
                                    "Hiragana",
                                    "Katakana",
                                    "Bopomofo",
                                    "Han",
                                    "Yi",
                                    "Old_Italic",
                                    "Gothic",
                                    "Deseret",
                                    "Tagalog",
                                    "Hanunoo",
                                    "Buhid",
                                    "Tagbanwa",
                                    "Limbu",
                                    "Tai_Le",
                                    "Linear_B",
                                    "Ugaritic",
                                    "Shavian",
                                    "Osmanya",
                                    "Cypriot",
                                    "Braille",
                                    "Buginese",
                                    "Coptic",
                                    "New_Tai_Lue",
                                    "Glagolitic",
                                    "Tifinagh",
                                    "Syloti_Nagri",
                                    "Old_Persian",
                                    "Kharoshthi",
                                    "Balinese",
                                    "Cuneiform",
                                    "Phoenician",
                                    "Phags_Pa",
                                    "Nko",
                                    "Sundanese",
                                    "Lepcha",
                                    "Ol_Chiki",
                                    "Vai",
                                    "Saurashtra",
                                    "Kayah_Li",
                                    "Rejang",
                                    "Lycian",
                                    "Carian",
                                    "Lydian",
                                    "Cham",
                                    "Tai_Tham",
                                    "Tai_Viet",
                                    "Avestan",
                                    "Egyptian_Hieroglyphs",
                                    "Samaritan",
                                    "Lisu",
                                    "Bamum",
                                    "Javanese",
                                    "Meetei_Mayek",
                                    "Imperial_Aramaic",
                                    "Old_South_Arabian",
                                    "Inscriptional_Parthian",
                                    "Inscriptional_Pahlavi",
                                    "Old_Turkic",
                                    "Kaithi",
                                    "Batak",
                                    "Brahmi",
                                    "Mandaic",
                                    "Chakma",
                                    "Meroitic_Cursive",
                                    "Meroitic_Hieroglyphs",
                                    "Miao",
                                    "Sharada",
                                    "Sora_Sompeng",
                                    "Takri",
                                    "Caucasian_Albanian",
                                    "Bassa_Vah",
                                    "Duployan",
                                    "Elbasan",
                                    "Grantha",
                                    "Pahawh_Hmong",
                                    "Khojki",
                                    "Linear_A",
                                    "Mahajani",
                                    "Manichaean",
                                    "Mende_Kikakui",
                                    "Modi",
                                    "Mro",
                                    "Old_North_Arabian",
                                    "Nabataean",
                                    "Palmyrene",
                                    "Pau_Cin_Hau",
                                    "Old_Permic",
                                    "Psalter_Pahlavi",
                                    "Siddham",
                                    "Khudawadi",
                                    "Tirhuta",
                                    "Warang_Citi",
                                    "Ahom",
                                    "Anatolian_Hieroglyphs",
                                    "Hatran",
                                    "Multani",
                                    "Old_Hungarian",
                                    "SignWriting",
                                    "Adlam",
                                    "Bhaiksuki",
                                    "Marchen",
                                    "Newa",
                                    "Osage",
                                    "Tangut"};

bool has_property(char32_t code_point, OnigCtype type) {
  return ONIGENC_IS_CODE_CTYPE(ONIG_ENCODING_UTF8, code_point, type) != 0;
}

}  // namespace

bool is_regex_letter(char32_t code_point) {
  static const OnigCtype type = property("L");
  return has_property(code_point, type);
}

bool is_regex_upper(char32_t code_point) {
  static const OnigCtype upper = property("Lu"), title = property("Lt");
  return has_property(code_point, upper) || has_property(code_point, title);
}

bool is_regex_lower(char32_t code_point) {
  static const OnigCtype type = property("Ll");
  return has_property(code_point, type);
}

bool is_regex_mark(char32_t code_point) {
  static const OnigCtype type = property("M");
  return has_property(code_point, type);
}

bool is_regex_symbol(char32_t code_point) {
  static const OnigCtype punctuation = property("P"), symbol = property("S");
  return has_property(code_point, punctuation) || has_property(code_point, symbol);
}

bool is_regex_number(char32_t code_point) {
  static const OnigCtype type = property("N");
  return has_property(code_point, type);
}

int script_of(char32_t code_point) {
  static const std::vector<OnigCtype> types = [] {
    std::vector<OnigCtype> found;
    for (const char* name : kScripts) {
      const OnigCtype type = property(name);
      if (static_cast<int>(type) > 0) found.push_back(type);
    }
    return found;
  }();
  thread_local size_t last = 0;  // neighbours are mostly of one script
  if (has_property(code_point, types[last])) return static_cast<int>(last);
  for (size_t i = 0; i < types.size(); ++i) {
    if (has_property(code_point, types[i])) return static_cast<int>(last = i);
  }
  return -1;
}

bool is_regex_space(char32_t code_point) { return has_property(code_point, ONIGENC_CTYPE_SPACE); }

struct Regex::Compiled {
  regex_t* regex = nullptr;
  ~Compiled() {
    if (regex != nullptr) onig_free(regex);
  }
};

Regex::Regex(const std::string& pattern)
    : compiled_(std::make_unique<Compiled>()), pattern_(pattern) {
  initialize_once();
  OnigErrorInfo info;
  const char* begin = pattern.data();
  const int code =
      onig_new(&compiled_->regex, onig_chars(begin), onig_chars(begin + pattern.size()),
               ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  if (code != ONIG_NORMAL) {
    compiled_->regex = nullptr;
    throw FormatError("pattern '{}': found {}, expected an Oniguruma regular expression", pattern,
                      error_text(code, &info));
  }
}

Regex Regex::literal(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (static_cast<uint8_t>(c) < 0x80 && !is_word(static_cast<uint8_t>(c)) && c > ' ') {
      pattern.push_back('\\');
    }
    pattern.push_back(c);
  }
  Regex regex(pattern);
  regex.literal_ = text;
  return regex;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

std::vector<std::pair<size_t, size_t>> Regex::find_all(std::string_view text) const {
  std::vector<std::pair<size_t, size_t>> matches;
  if (!literal_.empty()) {
    for (size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, at + literal_.size())) {
      matches.emplace_back(at, at + literal_.size());
    }
    return matches;
  }
  const auto free_region = [](OnigRegion* region) { onig_region_free(region, 1); };
  const std::unique_ptr<OnigRegion, decltype(free_region)> region(onig_region_new(), free_region);
  const OnigUChar* begin = onig_chars(text.data());
  const OnigUChar* end = begin + text.size();
  size_t from = 0;
  size_t last_end = std::string_view::npos;
  while (from <= text.size()) {
    const int at = onig_search(compiled_->regex, begin, end, begin + from, end, region.get(),
                               ONIG_OPTION_NONE);
    if (at == ONIG_MISMATCH) break;
    if (at < 0) {
      throw FormatError("pattern '{}': found {} while matching; simplify the pattern", pattern_,
                        error_text(at, nullptr));
    }
    const auto match_begin = static_cast<size_t>(region->beg[0]);
    const auto match_end = static_cast<size_t>(region->end[0]);
    if (match_begin == match_end && match_end == last_end) {
      from += from < text.size() ? char_length(text, from) : 1;
      continue;
    }
    matches.emplace_back(match_begin, match_end);
    from = last_end = match_end;
  }
  return matches;
}

}  // namespace strata::text
