// Runs the pipeline: added tokens, normalizer, pre-tokenizer, model, post-processor; and back
// through the decoder.
#include "strata/text/tokenizer.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/text/byte_level.h"
#include "strata/text/clean_up.h"
#include "strata/text/length_rules.h"
#include "strata/text/tokenizer_impl.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace fs = std::filesystem;

Tokenizer::Tokenizer() : impl_(std::make_unique<Impl>()) {}
Tokenizer::~Tokenizer() = default;

std::optional<int32_t> Tokenizer::Impl::find(std::string_view token) const {
  if (const auto id = added.find(token)) return id;
  return model->vocabulary().find(token);
}

void Tokenizer::Impl::run_model(std::string_view piece, std::vector<ModelToken>& out) const {
  if (cache.find(piece, out)) return;
  const size_t first = out.size();
  if (maps_bytes) {
    model->tokenize(bytes_to_characters(piece), out);
    // Byte characters take one or two bytes: back to positions in the piece.
    const auto width = [&](size_t i) {
      const auto byte = static_cast<uint8_t>(piece[i]);
      return (byte >= 33 && byte <= 126) ? 1u : 2u;
    };
    uint32_t mapped = 0, at = 0;
    const auto advance = [&](uint32_t to) {
      while (mapped < to) mapped += width(at++);
      return at;
    };
    for (size_t i = first; i < out.size(); ++i) {
      // A token that begins inside a character (a model may fall back to that one's bytes) stands
      // for the whole byte.
      const uint32_t begin = out[i].begin;
      const uint32_t reached = advance(begin);
      out[i].begin = mapped > begin ? reached - 1 : reached;
      out[i].end = advance(out[i].end);
    }
  } else {
    model->tokenize(piece, out);
  }
  cache.store(piece, out.data() + first, out.size() - first);
}

namespace {

constexpr const char* kHiddenToken =
    "; transformers writes this in the place of any token where it writes its arguments down: "
    "remove the line, or write the token";

// Where the next word begins: at a mark after something else.
size_t word_end(std::string_view text, size_t begin) {
  size_t at = begin;
  while (text.substr(at).starts_with(kWordMark)) at += kWordMark.size();
  return std::min(text.find(kWordMark, at), text.size());
}

}  // namespace

void Tokenizer::Impl::encode_pieces(const std::vector<Piece>& pieces,
                                    std::vector<Token>& out) const {
  std::vector<ModelToken> tokens;
  const auto encode = [&](const Piece& piece) {
    tokens.clear();
    run_model(piece.text, tokens);
    for (const ModelToken& token : tokens) {
      out.push_back({token.id, piece.input_begin(token.begin), piece.input_end(token.end)});
    }
  };
  for (const Piece& piece : pieces) {
    const size_t size = piece.text.size();
    for (size_t begin = 0, end; begin < size; begin = end) {
      end = cuts_words ? word_end(piece.text, begin) : size;
      encode(piece.sub(begin, end));
    }
  }
}

void Tokenizer::Impl::encode_text(const Piece& piece, Arena& arena, std::vector<Token>& out) const {
  const Piece text = normalizer ? normalizer->apply(piece, arena) : piece;
  std::vector<Piece> pieces;
  for (const TokenSpan& span : added.split(text.text, /*after_normalization=*/true)) {
    const Piece part = text.sub(span.begin, span.end);
    if (span.id >= 0) {
      out.push_back({span.id, part.input_begin(0), part.input_end(part.text.size())});
      continue;
    }
    pieces.clear();
    if (pre_tokenizer) {
      pre_tokenizer->split(part, arena, pieces);
    } else {
      pieces.push_back(part);
    }
    encode_pieces(pieces, out);
  }
}

std::vector<Token> Tokenizer::Impl::encode_parts(std::string_view text) const {
  if (text.size() >= UINT32_MAX) {
    throw FormatError("text: found {} bytes, expected less than 4 GiB; split it", text.size());
  }
  std::vector<Token> out;
  out.reserve(text.size() / 3 + 4);
  Arena arena;
  Piece input = arena.input(text);
  const bool has_code = reads_code_prefix && input.text.starts_with(">>");
  const size_t code_end = has_code ? input.text.find("<<") : text.npos;
  if (code_end != text.npos) {
    const auto size = static_cast<uint32_t>(code_end + 2);
    const auto unknown = specials.unk ? find(*specials.unk) : std::nullopt;
    const auto id = find(input.text.substr(0, size));
    out.push_back({id ? *id : unknown.value_or(0), 0, size});
    input = input.sub(size, input.text.size());
  }
  for (const TokenSpan& span : added.split(input.text, /*after_normalization=*/false)) {
    const Piece part = input.sub(span.begin, span.end);
    if (span.id >= 0) {
      out.push_back({span.id, part.input_begin(0), part.input_end(part.text.size())});
    } else {
      encode_text(part, arena, out);
    }
  }
  return out;
}

void Tokenizer::Impl::add_ends(std::string_view text, bool add_special_tokens,
                               const PostProcessor* ends, std::vector<Token>& tokens) const {
  if (ends == nullptr) return;
  const EncodedText encoded{text, [&](const Token& token) -> std::string_view {
                              if (!added.contains(token.id)) return token_text(token.id);
                              return text.substr(token.begin, token.end - token.begin);
                            }};
  ends->process(encoded, add_special_tokens, tokens);
}

std::vector<Token> Tokenizer::encode_with_ranges(std::string_view text,
                                                 bool add_special_tokens) const {
  std::vector<Token> tokens = impl_->encode_parts(text);
  impl_->add_ends(text, add_special_tokens, impl_->post_processor.get(), tokens);
  return tokens;
}

Tokenizer::FittedTokens Tokenizer::encode_to_length(std::string_view text,
                                                    bool add_special_tokens) const {
  const LengthRules rules = read_length_rules(impl_->lengths, impl_->subject);
  std::vector<Token> ends;
  impl_->add_ends("", add_special_tokens, impl_->post_processor.get(), ends);
  FittedTokens fitted{.tokens = impl_->encode_parts(text), .attention = {}};
  truncate(rules, static_cast<int64_t>(ends.size()), impl_->subject, fitted.tokens);
  impl_->add_ends(text, add_special_tokens, impl_->post_processor.get(), fitted.tokens);
  fitted.attention = pad(rules, fitted.tokens);
  return fitted;
}

// A pair. Its tokens' ranges are those of two texts, and nobody asks for them.
Tokenizer::JoinedTexts Tokenizer::Impl::joined(std::vector<Token> first,
                                               std::vector<Token> second) const {
  std::vector<TypedIds> parts(2);
  for (const Token& token : first) parts[0].ids.push_back(token.id);
  for (const Token& token : second) parts[1].ids.push_back(token.id);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].types.assign(parts[i].ids.size(), static_cast<uint8_t>(i));
  }
  if (post_processor) post_processor->join(parts);
  JoinedTexts result;
  for (const TypedIds& part : parts) {
    result.ids.insert(result.ids.end(), part.ids.begin(), part.ids.end());
    result.types.insert(result.types.end(), part.types.begin(), part.types.end());
  }
  return result;
}

Tokenizer::JoinedTexts Tokenizer::Impl::encode_texts(std::string_view text,
                                                     std::optional<std::string_view> second,
                                                     int64_t max_length,
                                                     const PostProcessor* ends) const {
  const auto ended = [&](std::vector<Token> tokens) {
    add_ends(text, /*add_special_tokens=*/true, ends, tokens);
    JoinedTexts result;
    for (const Token& token : tokens) result.ids.push_back(token.id);
    result.types.assign(tokens.size(), 0);
    return result;
  };
  std::vector<Token> parts[] = {encode_parts(text),
                                second ? encode_parts(*second) : std::vector<Token>{}};
  const size_t added = (second ? joined({}, {}) : ended({})).ids.size();
  bool is_cut = false;
  if (max_length > 0) {
    const auto most = static_cast<size_t>(max_length);
    const auto [first_size, second_size] =
        share_room(parts[0].size(), parts[1].size(), most - std::min(most, added));
    is_cut = first_size < parts[0].size() || second_size < parts[1].size();
    cut_to(first_size, truncates_from_left, parts[0]);
    cut_to(second_size, truncates_from_left, parts[1]);
  }
  JoinedTexts result =
      second ? joined(std::move(parts[0]), std::move(parts[1])) : ended(std::move(parts[0]));
  result.is_cut = is_cut;
  result.num_added = static_cast<int64_t>(added);
  return result;
}

Tokenizer::JoinedTexts Tokenizer::encode_texts(std::string_view text,
                                               std::optional<std::string_view> second,
                                               int64_t max_length) const {
  return impl_->encode_texts(text, second, max_length, impl_->post_processor.get());
}

Tokenizer::JoinedTexts Tokenizer::encode_target(std::string_view text, int64_t max_length) const {
  const Impl& impl = impl_->of_targets ? *impl_->of_targets : *impl_;
  const auto& own = impl.target_post_processor;
  return impl.encode_texts(text, std::nullopt, max_length,
                           own ? own.get() : impl.post_processor.get());
}

bool Tokenizer::has_languages() const { return impl_->language_ends.has_value(); }

std::optional<int32_t> Tokenizer::language_id(std::string_view code) const {
  if (!has_languages()) return std::nullopt;
  return impl_->added.find(impl_->language_ends->token_of(std::string(code)));
}

std::unique_ptr<PostProcessor> Tokenizer::Impl::ends_of_language(
    const std::string& code, const std::string& settings) const {
  if (!added.find(language_ends->token_of(code))) {
    std::vector<std::string> codes;
    const size_t mark = language_ends->mark.size();
    for (const AddedToken& token : added.all()) {
      if (token.special && token.content.find('_') != std::string::npos) {
        codes.push_back(token.content.substr(mark, token.content.size() - 2 * mark));
      }
    }
    throw ConfigError("{}: found \"{}\", expected a language of {} [{}]; change it", settings, code,
                      subject, fmt::join(codes, ", "));
  }
  return resolved_post_processor(text::ends_of_language(*language_ends, code));
}

void Tokenizer::set_languages(const std::string& source, const std::string& target,
                              const std::string& settings) {
  impl_->post_processor = impl_->ends_of_language(source, settings);
  impl_->target_post_processor = impl_->ends_of_language(target, settings);
}

bool Tokenizer::gives_token_types() const { return impl_->gives_token_types; }

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const std::vector<Token> tokens = encode_with_ranges(text, add_special_tokens);
  std::vector<int32_t> ids(tokens.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = tokens[i].id;
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string text = decode_with_spaces(ids, skip_special_tokens);
  return impl_->cleans_spaces ? clean_up_spaces(std::move(text)) : text;
}

std::string Tokenizer::decode_with_spaces(std::span<const int32_t> ids,
                                          bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    if (skip_special_tokens && is_special(id)) continue;
    const std::string* token = impl_->added.token(id);
    if (token == nullptr) token = impl_->model->vocabulary().token(id);
    if (token != nullptr) tokens.push_back(*token);
  }
  if (impl_->decoder) impl_->decoder->apply(tokens);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && !impl_->decoder) text.push_back(' ');
    text += tokens[i];
  }
  return text;
}

bool Tokenizer::cleans_spaces() const { return impl_->cleans_spaces; }

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  return impl_->find(token);
}

const std::string& Tokenizer::Impl::token_text(int32_t id) const {
  static const std::string none;
  if (const std::string* token = added.token(id)) return *token;
  const std::string* token = model->vocabulary().token(id);
  return token == nullptr ? none : *token;
}

const std::string& Tokenizer::id_to_token(int32_t id) const { return impl_->token_text(id); }
// By its text: a vocabulary may hold a special token twice.
bool Tokenizer::is_special(int32_t id) const {
  if (impl_->added.contains(id)) return impl_->added.is_special(id);
  const auto added = impl_->added.find(impl_->token_text(id));
  return added && impl_->added.is_special(*added);
}
bool Tokenizer::splits_special_tokens() const { return impl_->added.ignores_specials_in_text(); }
int32_t Tokenizer::vocab_size() const { return impl_->vocab_size; }
bool Tokenizer::may_join_next(int32_t id) const {
  return impl_->decoder && impl_->decoder->joins_bytes() && byte_of_token(id_to_token(id)) >= 0;
}
const Tokenizer::Specials& Tokenizer::specials() const { return impl_->specials; }
const Tokenizer::Specials& Tokenizer::specials_at_load() const { return impl_->specials_at_load; }
const std::string& Tokenizer::chat_template() const { return impl_->chat_template; }

const std::string& Tokenizer::chat_template_name() const { return impl_->chat_template_name; }
const std::string& Tokenizer::tool_template() const { return impl_->tool_template; }
const std::map<std::string, std::string>& Tokenizer::other_templates() const {
  return impl_->other_templates;
}
const std::string& Tokenizer::pipeline() const { return impl_->pipeline; }
std::vector<fs::path> Tokenizer::files() const { return impl_->files; }

std::optional<int32_t> Tokenizer::bos_id() const {
  return impl_->specials.bos ? token_to_id(*impl_->specials.bos) : std::nullopt;
}
std::optional<int32_t> Tokenizer::eos_id() const {
  return impl_->specials.eos ? token_to_id(*impl_->specials.eos) : std::nullopt;
}
std::optional<int32_t> Tokenizer::pad_id() const {
  return impl_->specials.pad ? token_to_id(*impl_->specials.pad) : std::nullopt;
}

void Tokenizer::set_bos_token(std::string token) {
  if (!token_to_id(token)) {
    throw ConfigError("bos_token: found \"{}\", expected a token of {}", token, impl_->subject);
  }
  impl_->specials.bos = std::move(token);
}

std::optional<int64_t> Tokenizer::model_max_length() const { return impl_->model_max_length; }

std::vector<AddedToken> Tokenizer::added_tokens() const { return impl_->added.all(); }

int Tokenizer::add_tokens(const std::vector<AddedToken>& tokens) {
  const Vocabulary& vocabulary = impl_->model->vocabulary();
  int count = 0;
  for (const AddedToken& token : tokens) {
    if (token.content.empty() || impl_->added.find(token.content)) continue;
    if (!vocabulary.find(token.content)) ++count;
    impl_->added.add(token, vocabulary);
    impl_->since_load.emplace_back(token, *impl_->added.find(token.content));
  }
  impl_->added.prepare(impl_->normalizer.get());
  impl_->vocab_size = std::max(impl_->vocab_size, impl_->added.end_id());
  return count;
}

const std::vector<std::pair<AddedToken, int32_t>>& Tokenizer::tokens_since_load() const {
  return impl_->since_load;
}

void Tokenizer::set_eos_token(std::string token) {
  if (!token_to_id(token)) {
    throw ConfigError("eos_token: found \"{}\", expected a token of {}{}", token, impl_->subject,
                      token == "<EOS_TOKEN>" ? kHiddenToken : "");
  }
  impl_->specials.eos = std::move(token);
}

void Tokenizer::set_pad_token(std::string token) {
  if (!token_to_id(token)) {
    throw ConfigError("pad_token: found \"{}\", expected a token of {}{}", token, impl_->subject,
                      token == "<PAD_TOKEN>" ? kHiddenToken : "");
  }
  impl_->specials.pad = std::move(token);
}

}  // namespace strata::text
