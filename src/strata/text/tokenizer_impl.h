// What a Tokenizer consists of. Only tokenizer.cpp, which runs it, and tokenizer_load.cpp, which
// builds it, include this.
#pragma once

#include <map>

#include "strata/text/classes/rules.h"
#include "strata/text/decoder.h"
#include "strata/text/model.h"
#include "strata/text/normalizer.h"
#include "strata/text/piece_cache.h"
#include "strata/text/post_processor.h"
#include "strata/text/pre_tokenizer.h"
#include "strata/text/special_tokens.h"
#include "strata/text/tokenizer.h"
#include "strata/text/tokenizer_file.h"

namespace strata::text {

inline constexpr std::string_view kWordMark = "▁";

struct FolderFiles;

struct Tokenizer::Impl {
  std::string subject;  // path of tokenizer.json
  AddedTokens added;
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  bool cuts_words = false;  // SentencePiece models: pieces are cut before the marks of words
  bool maps_bytes = false;  // pieces are bytes that the model sees as byte characters
  std::unique_ptr<Model> model;
  std::unique_ptr<PostProcessor> post_processor;
  std::unique_ptr<PostProcessor> target_post_processor;  // null: the same
  std::optional<LanguageEnds> language_ends;
  bool reads_code_prefix = false;
  std::unique_ptr<Impl> of_targets;  // where targets are cut otherwise; null: as sources
  std::unique_ptr<Decoder> decoder;
  bool cleans_spaces = false;  // decode() ends with clean_up_spaces()
  mutable PieceCache cache;
  Specials specials, specials_at_load;
  std::string chat_template, tool_template, chat_template_name;
  std::map<std::string, std::string> other_templates;
  std::vector<std::filesystem::path> files;
  std::string pipeline;
  std::vector<std::pair<AddedToken, int32_t>> since_load;
  int32_t vocab_size = 0;
  Json lengths;  // "truncation" and "padding" of the file
  std::optional<int64_t> model_max_length;
  bool truncates_from_left = false;
  bool gives_token_types = false;

  void assemble(FolderFiles source, const std::filesystem::path& folder);
  void build(TokenizerFile& file);
  void use_post_processor(Json document);
  std::unique_ptr<PostProcessor> resolved_post_processor(Json document) const;
  std::unique_ptr<PostProcessor> ends_of_language(const std::string& code,
                                                  const std::string& settings) const;
  void use_switches(const Json& config, const Json& model_config, const Json& document);
  std::optional<int32_t> find(std::string_view token) const;
  void add_tokens(const NamedTokens& tokens, const TokenizerFile& file, bool is_rebuilt);
  std::vector<Token> encode_parts(std::string_view text) const;
  JoinedTexts joined(std::vector<Token> first, std::vector<Token> second) const;
  void add_ends(std::string_view text, bool add_special_tokens, const PostProcessor* ends,
                std::vector<Token>& tokens) const;
  JoinedTexts encode_texts(std::string_view text, std::optional<std::string_view> second,
                           int64_t max_length, const PostProcessor* ends) const;
  void encode_text(const Piece& piece, Arena& arena, std::vector<Token>& out) const;
  void encode_pieces(const std::vector<Piece>& pieces, std::vector<Token>& out) const;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;
  void run_model(std::string_view piece, std::vector<ModelToken>& out) const;
  const std::string& token_text(int32_t id) const;
};

}  // namespace strata::text
