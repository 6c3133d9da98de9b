// WordPiece (longest known beginning, again and again) and WordLevel (whole words), as `tokenizers`
// does them.
#include "strata/base/error.h"
#include "strata/text/component_json.h"
#include "strata/text/model.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

class WordModel : public Model {
 public:
  WordModel(Vocabulary vocabulary, std::string unk_token)
      : vocabulary_(std::move(vocabulary)), unk_token_(std::move(unk_token)) {
    unk_id_ = vocabulary_.find(unk_token_);
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 protected:
  void add_unknown(std::string_view piece, std::vector<ModelToken>& out) const {
    if (!unk_id_) {
      throw FormatError(
          "tokenizer: found unk_token \"{}\" outside the vocabulary, expected it inside because "
          "the text has the unknown word \"{}\"",
          unk_token_, piece);
    }
    out.push_back({*unk_id_, 0, static_cast<uint32_t>(piece.size())});
  }

  Vocabulary vocabulary_;

 private:
  std::string unk_token_;
  std::optional<int32_t> unk_id_;
};

class WordLevel : public WordModel {
 public:
  using WordModel::WordModel;
  void tokenize(std::string_view piece, std::vector<ModelToken>& out) const override {
    const auto id = vocabulary_.find(piece);
    if (!id) return add_unknown(piece, out);
    out.push_back({*id, 0, static_cast<uint32_t>(piece.size())});
  }
};

class WordPiece : public WordModel {
 public:
  WordPiece(Vocabulary vocabulary, std::string unk_token, std::string prefix, int64_t max_chars)
      : WordModel(std::move(vocabulary), std::move(unk_token)),
        prefix_(std::move(prefix)),
        max_chars_(max_chars) {
    for (int32_t id = 0; id < vocabulary_.end_id(); ++id) {
      if (const std::string* token = vocabulary_.token(id)) {
        longest_ = std::max(longest_, token->size());
      }
    }
  }

  void tokenize(std::string_view piece, std::vector<ModelToken>& out) const override {
    int64_t num_chars = 0;
    for (size_t i = 0; i < piece.size(); i += char_length(piece, i)) ++num_chars;
    if (num_chars > max_chars_) return add_unknown(piece, out);
    const size_t first = out.size();
    for (size_t begin = 0; begin < piece.size();) {
      const auto token = longest_at(piece, begin);
      if (token.id < 0) {
        out.resize(first);
        return add_unknown(piece, out);
      }
      out.push_back(token);
      begin = token.end;
    }
  }

 private:
  // The longest token at `begin`; id -1 if there is none.
  ModelToken longest_at(std::string_view piece, size_t begin) const {
    std::string word = begin > 0 ? prefix_ : "";
    const size_t prefix = word.size();
    word.append(piece, begin);
    size_t end = word.size();
    while (end > longest_ && end > prefix) end = previous_char(word, end);
    for (; end > prefix; end = previous_char(word, end)) {
      if (const auto id = vocabulary_.find(std::string_view(word).substr(0, end))) {
        return {*id, static_cast<uint32_t>(begin), static_cast<uint32_t>(begin + end - prefix)};
      }
    }
    return {-1, 0, 0};
  }

  std::string prefix_;
  int64_t max_chars_;
  size_t longest_ = 0;  // bytes of the longest token: nothing longer is looked up
};

Vocabulary take_vocabulary(TokenizerFile& file, const std::string& where) {
  if (!file.has_vocab) throw FormatError("{}: found no \"vocab\" object, expected one", where);
  return {std::move(file.vocab), where};
}

}  // namespace

std::unique_ptr<Model> make_word_piece_model(TokenizerFile& file) {
  const Json& json = file.document.at("model");
  const std::string where = file.subject + ": model";
  return std::make_unique<WordPiece>(
      take_vocabulary(file, where), string_field(json, "unk_token", where).value_or("[UNK]"),
      string_field(json, "continuing_subword_prefix", where).value_or("##"),
      int_field(json, "max_input_chars_per_word", 100, where));
}

std::unique_ptr<Model> make_word_level_model(TokenizerFile& file) {
  const Json& json = file.document.at("model");
  const std::string where = file.subject + ": model";
  return std::make_unique<WordLevel>(take_vocabulary(file, where),
                                     string_field(json, "unk_token", where).value_or("<unk>"));
}

}  // namespace strata::text
