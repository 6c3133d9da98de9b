// Text to token ids and back, as Hugging Face `tokenizers` does it for a model folder.
// Never trains a vocabulary, never writes files, knows nothing of models or tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/text/added_tokens.h"

namespace strata::text {

// One token and the bytes of the input text that it stands for, [begin, end). A token that holds
// only a part of a character covers the whole character. Tokens that the post-processor adds
// (BOS, EOS) cover [0, 0).
struct Token {
  int32_t id;
  uint32_t begin;
  uint32_t end;
};

// Threads: all const methods may be called at the same time from any thread.
// Errors: FormatError for a tokenizer.json that is broken or uses a component that is not
// supported (its type is named), IoError for a missing file.
class Tokenizer {
 public:
  // The named tokens of a model (bos_token, eos_token, ...); absent where the model has none.
  // `own`: names that only this model has ("image_token") with their tokens.
  struct Specials {
    std::optional<std::string> bos, eos, unk, pad, sep, cls, mask;
    std::vector<std::pair<std::string, std::string>> own = {};
    bool operator==(const Specials&) const = default;
  };

  // Reads tokenizer.json and, when present, tokenizer_config.json, special_tokens_map.json,
  // added_tokens.json, chat_template.jinja, additional_chat_templates/*.jinja and
  // config.json (only for model_type) from `folder`, and chooses the pipeline by the rules of
  // transformers 5 (AutoTokenizer).
  static std::unique_ptr<Tokenizer> load(const std::filesystem::path& folder);
  ~Tokenizer();

  // Token ids of `text`. Bytes that are not UTF-8 count as U+FFFD. `add_special_tokens` runs the
  // post-processor's template (BOS, EOS); special tokens written in the text match, except for a
  // tokenizer that splits them (split_special_tokens).
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  std::vector<Token> encode_with_ranges(std::string_view text,
                                        bool add_special_tokens = true) const;

  // The same, truncated and padded as the sections of tokenizer.json say (the tokenizers library
  // does so by itself, transformers and training do not). `attention`: 1 for every token, 0 for
  // padding. Errors: FormatError for sections that this cannot follow.
  struct FittedTokens {
    std::vector<Token> tokens;
    std::vector<uint8_t> attention;
  };
  FittedTokens encode_to_length(std::string_view text, bool add_special_tokens = true) const;

  // A text, or a pair of texts, with the tokens that the post-processor adds: at most `max_length`
  // of them (0: any number), for which the texts lose what is too much, as with truncation=True.
  // Errors: FormatError for a post-processor that says nothing of pairs.
  struct JoinedTexts {
    std::vector<int32_t> ids;
    std::vector<uint8_t> types;  // segment ids; 0 of a text by itself
    bool is_cut = false;
    int64_t num_added = 0;  // tokens of no text. They stay even where they alone are too many
  };
  JoinedTexts encode_texts(std::string_view text, std::optional<std::string_view> second,
                           int64_t max_length) const;
  // Tokenizers of translation models (mBART, NLLB): a token for the text's language stands at one
  // of its ends. Languages go by their codes, "en_XX".
  bool has_languages() const;
  std::optional<int32_t> language_id(std::string_view code) const;
  // From then on texts are of the language `source`, those of encode_target() of `target`. Requires
  // has_languages(). ConfigError for a code without a token, which says `settings`. Not to be
  // called while others read.
  void set_languages(const std::string& source, const std::string& target,
                     const std::string& settings);
  // encode_texts() of a text that a model is to write; differs only after set_languages().
  JoinedTexts encode_target(std::string_view text, int64_t max_length) const;
  // Whether models are given the types: token_type_ids is among the class's model_input_names, or
  // those of tokenizer_config.json.
  bool gives_token_types() const;

  // Text of `ids`; ids without a token are left out, as the reference does. Where the model asks
  // for clean_up_tokenization_spaces, decode() takes the spaces before punctuation away, which the
  // text of a part of the ids may still need.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;
  std::string decode_with_spaces(std::span<const int32_t> ids,
                                 bool skip_special_tokens = true) const;
  bool cleans_spaces() const;

  std::optional<int32_t> token_to_id(std::string_view token) const;
  // Requires: 0 <= id < vocab_size(); empty for an id that no token has.
  const std::string& id_to_token(int32_t id) const;
  bool is_special(int32_t id) const;
  bool splits_special_tokens() const;  // in texts
  int32_t vocab_size() const;          // highest id + 1
  // Whether the text of `id` may still change with the next token: bytes that are decoded together.
  bool may_join_next(int32_t id) const;

  // model_max_length of tokenizer_config.json: nothing here is cut to it. Who classifies cuts texts
  // there, others warn of longer rows, as in the reference.
  std::optional<int64_t> model_max_length() const;

  const Specials& specials() const;
  const Specials& specials_at_load() const;  // before set_eos_token() and its like
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  // The token must be in the vocabulary (ConfigError). Not to be called while others read.
  void set_bos_token(std::string token);
  void set_eos_token(std::string token);
  void set_pad_token(std::string token);

  // Tokens beside the model's vocabulary, in the order of their ids.
  std::vector<AddedToken> added_tokens() const;
  // Adds those that the vocabulary lacks, each under the next free id, and returns how many those
  // are. A content that the model's vocabulary has becomes an added token with its old id. Not to
  // be called while others read.
  int add_tokens(const std::vector<AddedToken>& tokens);
  // What add_tokens() changed since load(), with ids.
  const std::vector<std::pair<AddedToken, int32_t>>& tokens_since_load() const;

  // The template named "default" (or the only one); empty if the model has none.
  const std::string& chat_template() const;
  // What messages call it: "chat template of FOLDER".
  const std::string& chat_template_name() const;
  // The one named "tool_use", for conversations with tools; empty if there is none.
  const std::string& tool_template() const;
  // Those with other names ("rag").
  const std::map<std::string, std::string>& other_templates() const;

  // What the model's config.json chose, which is not among files(): the class whose pipeline this
  // is, and a corrected pattern.
  const std::string& pipeline() const;

  // The files read, to be copied beside an exported model.
  std::vector<std::filesystem::path> files() const;

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Decodes a growing list of ids. Concatenating all results gives decode() of all ids; no result
// ends inside a UTF-8 character.
// Invariants: text before `sent_` of the window's text has been handed out, except for its end in
// `uncleaned_`.
class StreamDecoder {
 public:
  // `tokenizer` must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens = true)
      : tokenizer_(&tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // The text that became certain with `id`; may be empty.
  std::string push(int32_t id);
  // What is left at the end of the answer (incomplete characters as U+FFFD); starts afresh.
  std::string finish();

 private:
  std::string push_with_spaces(int32_t id);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::vector<int32_t> window_;  // context tokens whose text was sent, then pending ones
  size_t context_ = 0;           // number of context tokens in the window
  size_t sent_ = 0;              // bytes of the window's text already handed out
  std::string uncleaned_;        // text whose spaces depend on what follows
};

}  // namespace strata::text
