#include "strata/checkpoint/gguf/tokenizer.h"

#include <algorithm>
#include <optional>

#include "strata/base/error.h"
#include "strata/checkpoint/gguf/pre_tokenizer.h"
#include "strata/checkpoint/gguf/vocabulary.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;
using text::Tokenizer;
using text::TokenizerParts;

// What llama.cpp takes for the end of a turn without being told.
constexpr std::string_view kKnownEnds[] = {"<|eot_id|>",    "<|im_end|>",      "<|end|>",
                                           "<end_of_turn>", "<|endoftext|>",   "<|eom_id|>",
                                           "<EOT>",         "<|end_of_text|>", "<end_of_utterance>",
                                           "</s>",          "<|return|>",      "<eos>"};

class TokenizerKeys {
 public:
  TokenizerKeys(const fs::path& folder, const Json& config, int64_t num_rows)
      : folder_(folder),
        config_(config),
        num_rows_(num_rows),
        parts_(text::read_tokenizer_parts(folder)),
        tokenizer_(Tokenizer::load(folder)) {
    if (parts_.merges.empty() || parts_.vocabulary.empty()) {
      const Json type = parts_.model.is_object() ? parts_.model.value("type", Json()) : Json();
      throw FormatError(
          "{}: found a tokenizer of type {}, expected BPE (of bytes, or SentencePiece's), the only "
          "one that llama.cpp knows for such a model; use a model with one",
          parts_.subject, type.dump());
    }
  }

  GgufTokenizer describe(const std::vector<int64_t>& ends) {
    has_byte_level(parts_) ? add_byte_level() : add_sentencepiece();
    add_named_tokens();
    add_ends_around_texts();
    add_other_ends(ends);
    add_templates();
    return std::move(result_);
  }

 private:
  void put(const std::string& key, hf::GgufValue value) {
    result_.keys.emplace_back("tokenizer." + key, std::move(value));
  }

  void put_tokens(TokenList& list) {
    put("ggml.tokens", hf::GgufArray(std::move(list.texts)));
    if (!list.scores.empty()) put("ggml.scores", hf::GgufArray(std::move(list.scores)));
    put("ggml.token_type", hf::GgufArray(std::move(list.kinds)));
    std::ranges::move(list.notes, std::back_inserter(result_.notes));
  }

  void add_byte_level() {
    const Json model = parts_.model;
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json value = model.value(key, Json());
      if (value.is_null() || value == "") continue;
      throw FormatError(
          "{}: found {} {}, expected none, as llama.cpp has no such marks; "
          "use another tokenizer",
          parts_.subject, key, value.dump());
    }
    put("ggml.model", std::string("gpt2"));
    const std::string rule = pre_tokenizer_name(parts_);
    put("ggml.pre", rule);
    if (rule == "tekken" || rule == "gpt-4o") {
      result_.notes.push_back(fmt::format(
          "llama.cpp cuts words at combining marks, which the rule \"{}\" does not: the tokens of "
          "Hindi, Thai or Hebrew with points may be others",
          rule));
    }
    TokenList list = byte_level_tokens(parts_, *tokenizer_, num_rows_);
    put_tokens(list);
    put("ggml.merges", hf::GgufArray(merge_lines(parts_)));
  }

  void add_sentencepiece() {
    const SpacePrefix prefix = space_prefix(parts_);
    put("ggml.model", std::string("llama"));
    put("ggml.pre", std::string("default"));
    TokenList list = sentencepiece_tokens(parts_, *tokenizer_, num_rows_);
    put_tokens(list);
    put("ggml.add_space_prefix", prefix != SpacePrefix::kNever);
    if (prefix == SpacePrefix::kAtTheStart) {
      result_.notes.emplace_back(
          "llama.cpp also puts a space before the text after a special token, where the tokenizer "
          "puts one only at the beginning");
    }
  }

  bool is_row(std::optional<int64_t> id) const { return id && *id >= 0 && *id < num_rows_; }

  // A named token's id: the tokenizer's, else that of config.json.
  std::optional<int64_t> id_of(const std::optional<int32_t>& of_tokenizer, const char* key) const {
    if (of_tokenizer) return *of_tokenizer;
    const Json id = config_.value(key, Json());
    if (!id.is_number_integer() || !is_row(id.get<int64_t>())) return std::nullopt;
    return id.get<int64_t>();
  }

  void put_id(const char* name, std::optional<int64_t> id) {
    if (!id) return;
    if (!is_row(id)) {
      throw FormatError(
          "{}: found id {} for {}, expected one below the {} rows of the embedding; "
          "resize the embedding, or name another token",
          folder_.string(), *id, name, num_rows_);
    }
    put(fmt::format("ggml.{}_id", name), static_cast<uint32_t>(*id));
  }

  void add_named_tokens() {
    bos_ = id_of(tokenizer_->bos_id(), "bos_token_id");
    eos_ = id_of(tokenizer_->eos_id(), "eos_token_id");
    if (!eos_) {
      throw FormatError(
          "{}: found no eos_token, expected one, in whose place llama.cpp would end "
          "answers at a token of its own; name it in tokenizer_config.json",
          folder_.string());
    }
    put_id("bos_token", bos_);
    put_id("eos_token", eos_);
    const auto& unknown = tokenizer_->specials().unk;
    if (unknown) {
      const auto id = tokenizer_->token_to_id(*unknown);
      put_id("unknown_token", id ? std::optional<int64_t>(*id) : std::nullopt);
    }
    put_id("padding_token", id_of(tokenizer_->pad_id(), "pad_token_id"));
  }

  // What stands before and after a text is seen by looking, whatever puts it there.
  void add_ends_around_texts() {
    constexpr std::string_view kText = "a";
    const std::vector<int32_t> bare = tokenizer_->encode(kText, /*add_special_tokens=*/false);
    const std::vector<int32_t> whole = tokenizer_->encode(kText, /*add_special_tokens=*/true);
    for (const bool adds_bos : {false, true}) {
      for (const bool adds_eos : {false, true}) {
        if ((adds_bos && !bos_) || (adds_eos && !eos_)) continue;
        std::vector<int32_t> expected;
        if (adds_bos) expected.push_back(static_cast<int32_t>(*bos_));
        expected.insert(expected.end(), bare.begin(), bare.end());
        if (adds_eos) expected.push_back(static_cast<int32_t>(*eos_));
        if (expected != whole) continue;
        put("ggml.add_bos_token", adds_bos);
        put("ggml.add_eos_token", adds_eos);
        return;
      }
    }
    throw FormatError(
        "{}: found the tokens {} for \"{}\", expected none but bos_token and eos_token "
        "around [{}], as llama.cpp puts no others there; change the post_processor",
        parts_.subject, fmt::join(whole, ", "), kText, fmt::join(bare, ", "));
  }

  void add_other_ends(const std::vector<int64_t>& ends) {
    std::vector<std::string> untold;
    bool has_one = false;
    for (const int64_t id : ends) {
      if (id == eos_ || id >= tokenizer_->vocab_size() || !is_row(id)) continue;
      const std::string& token = tokenizer_->id_to_token(static_cast<int32_t>(id));
      if (std::ranges::find(kKnownEnds, token) != std::end(kKnownEnds)) continue;
      if (!std::exchange(has_one, true)) {
        put_id("eot_token", id);
      } else {
        untold.push_back(token);
      }
    }
    if (untold.empty()) return;
    result_.notes.push_back(
        fmt::format("{} end answers, too, which GGUF has no key for: pass them to llama.cpp as "
                    "stop strings",
                    fmt::join(untold, ", ")));
  }

  void add_templates() {
    std::vector<std::string> names;
    const auto add_other = [&](const std::string& name, const std::string& text) {
      if (text.empty()) return;
      names.push_back(name);
      put("chat_template." + name, text);
    };
    add_other("tool_use", tokenizer_->tool_template());
    for (const auto& [name, text] : tokenizer_->other_templates()) add_other(name, text);
    if (!tokenizer_->chat_template().empty()) put("chat_template", tokenizer_->chat_template());
    if (!names.empty()) put("chat_templates", hf::GgufArray(std::move(names)));
  }

  fs::path folder_;
  const Json& config_;
  int64_t num_rows_;
  TokenizerParts parts_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<int64_t> bos_, eos_;
  GgufTokenizer result_;
};

}  // namespace

GgufTokenizer describe_tokenizer(const fs::path& folder, const Json& config,
                                 const std::vector<int64_t>& ends, int64_t num_rows) {
  return TokenizerKeys(folder, config, num_rows).describe(ends);
}

}  // namespace strata::checkpoint
