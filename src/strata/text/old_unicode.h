// Character classes as the reference has them where its tables are not those of utf8proc:
// the crates behind BertNormalizer, Punctuation and StripAccents stay at the Unicode of 2015, the
// one behind the normal forms at that of 2018.
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
// Lower case, that of letters too which came with Unicode 16 and 17: that step knows them.
char32_t to_new_lower(char32_t c);
// Characters of no script for UnicodeScripts, though they have one.
bool is_new_in_scripts(char32_t c);
// Characters that the normal forms leave alone, and take for starters, though later tables
// decompose or order them.
bool is_new_in_forms(char32_t c);

}  // namespace strata::text
