// Python's str methods on UTF-8 text, by characters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace strata::text::jinja {

std::string upper_text(std::string_view text);
std::string lower_text(std::string_view text);
std::string title_text(std::string_view text);
std::string capitalize_text(std::string_view text);
std::string swapcase_text(std::string_view text);
std::string fold_case(std::string_view text);  // str.casefold
// str.center, ljust, rjust: `fill` goes to the left, to the right or to both sides.
std::string pad_text(std::string_view text, int64_t width, std::string_view fill, bool left,
                     bool right);
// str.strip: white space, or the characters in `chars`.
std::string strip_text(std::string_view text, const std::string* chars, bool left, bool right);
// str.split; a negative limit means no limit. Requires for split_text: a separator.
std::vector<std::string> split_whitespace(std::string_view text, int64_t limit, bool from_right);
std::vector<std::string> split_text(std::string_view text, std::string_view separator,
                                    int64_t limit, bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
std::string replace_text(std::string_view text, std::string_view old_text,
                         std::string_view new_text, int64_t limit);

}  // namespace strata::text::jinja
