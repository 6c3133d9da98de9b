// Writes the parts of a tokenizer.json document that a tokenizer class puts in place of the file's.
// Knows the forms, not the classes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/text/classes/rules.h"

namespace strata::text {

// The components, as tokenizer.json writes them.
Json component(const char* type);
Json byte_level(bool add_prefix_space, bool use_regex = true);
Json metaspace(const std::string& scheme, bool split = true);
Json replaced(const std::string& text, const std::string& content);  // a normalizer or decoder
Json replaced_regex(const std::string& pattern, const std::string& content);
Json stripped(bool left, bool right);
Json split_regex(const std::string& pattern, const char* behavior, bool invert = false);
Json split_string(const std::string& text, const char* behavior);
Json bert_normalizer(bool lowercase, Json strip_accents, bool clean = true, bool chinese = true);
Json normalizers(std::vector<Json> steps);
Json pre_tokenizers(std::vector<Json> steps);
Json decoders(std::vector<Json> steps);

Json one_space();  // a normalizer: several spaces become one

// Post-processors. Pieces are the texts "$A" and "$B" and tokens, names ("cls_token") or contents
// ("eng_Latn"), each with its type after a colon ("$B:1") where that is not 0.
using Pieces = std::vector<std::string>;
Json ends(const Pieces& single, const Pieces& pair);
Json bert_ends();  // cls_token and sep_token; the second text with what is after it is of type 1
Json doubled_ends(const std::string& first, const std::string& last);  // two of `last` between
Json repeated_ends(const std::string& last);                           // after each text
// Around both, with nothing between.
Json outer_ends(const Pieces& before, const Pieces& after);
Json cls_sep_ends(bool trim_offsets, bool add_prefix_space);  // of RoBERTa

// A token with the flag that mask tokens have: the white space before it goes along.
Json mask_token(const char* content);

// Named tokens that many classes have without being told.
Json fairseq_specials();  // <s>, </s>, <unk>, <pad>, and a mask token of the kind above
Json bert_specials();     // [UNK], [SEP], [PAD], [CLS], [MASK]
// The same with [CLS] and [SEP] as first and last token too.
Json bracket_specials(const char* unk, const char* pad);

struct BpeForm {
  std::string unk = {};  // empty: none
  bool fuse_unk = false;
  bool byte_fallback = false;
  std::string word_end = {};  // end_of_word_suffix
};

// What the constructor of a class sees and changes.
struct ClassBuilder {
  const Json& settings;
  Json& document;
  ClassRules& rules;
  const std::string& subject;

  bool flag(const char* key, bool fallback) const;
  bool is_null(const char* key) const;  // written as null, which some classes take for "none"
  // A setting that is a text, or a token's content.
  std::string text(const char* key, const std::string& fallback) const;
  size_t number(const char* key, size_t fallback) const;
  // The prepend_scheme of a Metaspace: always, or `without` where add_prefix_space is false.
  std::string scheme(const char* without = "never") const;

  // The models, of nothing but the file's vocabulary and merges. FormatError for a file of another.
  void use_bpe(const BpeForm& form) const;
  void use_unigram(size_t unk_id) const;
  void use_word_piece(const std::string& unk) const;
  // The place of a token among the pieces of a Unigram file, from `first` on; `fallback` if it is
  // not there, or has a score and must have none.
  size_t piece_index(const std::string& token, bool without_score, size_t fallback,
                     size_t first = 0) const;
  // The Precompiled step of the file's normalizer, or null.
  Json precompiled() const;
  // The parts after the model. A null normalizer is none.
  void use_parts(Json normalizer, Json pre_tokenizer, Json decoder) const;
};

// The constructors of one family each.
using ClassTable = std::map<std::string, void (*)(ClassBuilder&)>;
const ClassTable& byte_classes();
const ClassTable& sentence_classes();
const ClassTable& language_classes();
const ClassTable& word_classes();

}  // namespace strata::text
