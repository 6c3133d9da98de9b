// Character classes as the reference has them where its tables are older than those of utf8proc:
// the crates behind BertNormalizer, Punctuation and StripAccents stay at the Unicode of 2015.
#pragma once

namespace strata::text {

// ASCII symbols, and category P.
bool is_old_punctuation(char32_t c);
// Category Mn; what BertNormalizer(strip_accents) removes after decomposition.
bool is_old_nonspacing_mark(char32_t c);
// Category M; what StripAccents removes.
bool is_old_mark(char32_t c);
// Control, format and private characters, U+FFFD; what BertNormalizer(clean_text) removes. Not tab,
// line feed, carriage return.
bool is_old_control(char32_t c);

}  // namespace strata::text
