// SentencePiece's ModelProto, read from its wire format (sentencepiece_model.proto): pieces with
// scores and types, the model's kind, the character map. The tokenizer is what transformers makes
// of it, not SentencePiece's own algorithm: the models were released for the former.
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/text/base64.h"
#include "strata/text/classes/pieces.h"
#include "strata/text/component_json.h"
#include "strata/text/utf8.h"
#include "strata/text/vocabulary_files.h"

namespace strata::text {
namespace {

constexpr int kControl = 3, kUserDefined = 4, kUnigramModel = 1;

// The fields of one protobuf message.
class Message {
 public:
  Message(std::string_view bytes, const std::string& subject) : bytes_(bytes), subject_(subject) {}

  // The next field, false at the end.
  bool next() {
    if (at_ >= bytes_.size()) return false;
    const uint64_t key = varint();
    number_ = static_cast<int>(key >> 3);
    const int wire = static_cast<int>(key & 7);
    if (wire == 0) {
      integer_ = varint();
    } else if (wire == 1) {
      text_ = take(8);
    } else if (wire == 2) {
      text_ = take(varint());
    } else if (wire == 5) {
      text_ = take(4);
    } else {
      broken();
    }
    return true;
  }
  int number() const { return number_; }
  int64_t integer() const { return static_cast<int64_t>(integer_); }
  std::string_view text() const { return text_; }
  float number32() const {
    float value = 0;
    if (text_.size() != 4) broken();
    std::memcpy(&value, text_.data(), 4);
    return value;
  }

 private:
  [[noreturn]] void broken() const {
    throw FormatError(
        "{}: found broken data at byte {} of a message, expected a SentencePiece "
        "model; the file may be cut off",
        subject_, at_);
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ >= bytes_.size()) broken();
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7Fu) << shift;
      if ((byte & 0x80u) == 0) return value;
    }
    broken();
  }
  std::string_view take(uint64_t size) {
    if (size > bytes_.size() - at_) broken();
    const std::string_view taken = bytes_.substr(at_, size);
    at_ += size;
    return taken;
  }
  std::string_view bytes_;
  const std::string& subject_;
  size_t at_ = 0;
  int number_ = 0;
  uint64_t integer_ = 0;
  std::string_view text_;
};

struct SentencePieces {
  struct Piece {
    std::string text;
    float score = 0;
    int type = 1;
  };
  std::vector<Piece> pieces;
  int model_type = kUnigramModel;
  bool byte_fallback = false;
  int64_t unk_id = 0, bos_id = 1, eos_id = 2;
  std::string unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>";
  std::string charsmap;
};

void read_trainer(Message message, SentencePieces& model) {
  while (message.next()) {
    const auto id = static_cast<int32_t>(message.integer());  // negative ids are 64-bit varints
    switch (message.number()) {
      case 3:
        model.model_type = id;
        break;
      case 35:
        model.byte_fallback = id != 0;
        break;
      case 40:
        model.unk_id = id;
        break;
      case 41:
        model.bos_id = id;
        break;
      case 42:
        model.eos_id = id;
        break;
      case 45:
        model.unk_piece = message.text();
        break;
      case 46:
        model.bos_piece = message.text();
        break;
      case 47:
        model.eos_piece = message.text();
        break;
      default:
        break;
    }
  }
}

SentencePieces read_model(std::string_view bytes, const std::string& subject) {
  SentencePieces model;
  for (Message message(bytes, subject); message.next();) {
    Message inner(message.text(), subject);
    if (message.number() == 1) {
      SentencePieces::Piece piece;
      while (inner.next()) {
        if (inner.number() == 1) piece.text = inner.text();
        if (inner.number() == 2) piece.score = inner.number32();
        if (inner.number() == 3) piece.type = static_cast<int>(inner.integer());
      }
      if (!is_valid_utf8(piece.text)) {
        throw FormatError("{}: found piece {} that is no UTF-8, expected text", subject,
                          model.pieces.size());
      }
      model.pieces.push_back(std::move(piece));
    } else if (message.number() == 2) {
      read_trainer(inner, model);
    } else if (message.number() == 3) {
      while (inner.next()) {
        if (inner.number() == 2) model.charsmap = inner.text();
      }
    }
  }
  if (model.pieces.empty()) {
    throw FormatError("{}: found no pieces, expected a SentencePiece model", subject);
  }
  return model;
}

// Every way to make a piece of two others, in the order of the pieces, shorter left parts first.
void add_merges(const SentencePieces& model, TokenizerFile& file) {
  std::unordered_map<std::string_view, size_t> ids;
  for (const auto& piece : model.pieces) ids.emplace(piece.text, ids.size());
  for (const auto& piece : model.pieces) {
    const std::string_view text = piece.text;
    for (size_t i = text.empty() ? 0 : char_length(text, 0); i < text.size();
         i += char_length(text, i)) {
      if (ids.contains(text.substr(0, i)) && ids.contains(text.substr(i))) {
        file.merges.emplace_back(text.substr(0, i), text.substr(i));
      }
    }
  }
  file.has_merges = true;
}

// Names that the settings give to pieces by their ids, where those have another.
void rename_pieces(const Json& settings, TokenizerFile& file) {
  const auto names = settings.is_object() ? settings.find("added_tokens_decoder") : settings.end();
  if (!settings.is_object() || names == settings.end() || !names->is_object()) return;
  std::unordered_set<std::string> known;
  for (const auto& [text, id] : file.vocab) known.insert(text);
  for (auto& [text, id] : file.vocab) {
    const auto name = names->find(std::to_string(id));
    if (name == names->end() || !name->is_object() || !name->contains("content")) continue;
    const std::string content = required_string(*name, "content", file.subject);
    if (known.insert(content).second) text = content;
  }
}

// The control pieces, which are special, and the user-defined ones.
Json added_pieces(const SentencePieces& model) {
  Json added = Json::array();
  for (const auto& piece : model.pieces) {
    if (piece.type != kControl && piece.type != kUserDefined) continue;
    added.push_back(
        {{"content", piece.text}, {"normalized", false}, {"special", piece.type == kControl}});
  }
  return added;
}

// The pipeline that transformers gives a model without a class of its own.
void add_plain_pipeline(const SentencePieces& model, bool is_bpe, Json& document) {
  Json& kind = document["model"];
  if (is_bpe) {
    kind["unk_token"] = model.unk_piece;
    kind["fuse_unk"] = true;
  } else {
    kind["unk_id"] = model.unk_id;
  }
  kind["byte_fallback"] = model.byte_fallback;
  Json steps = Json::array(), decoders = Json::array();
  if (document.contains("normalizer")) steps.push_back(document["normalizer"]);
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}});
  document["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}});
  if (model.byte_fallback) {
    decoders.push_back({{"type", "ByteFallback"}});
    decoders.push_back({{"type", "Fuse"}});
  }
  document["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
  Json& specials = document["default_specials"] = Json::object();
  if (model.bos_id >= 0) specials["bos_token"] = model.bos_piece;
  if (model.eos_id >= 0) specials["eos_token"] = model.eos_piece;
  if (model.unk_id >= 0) specials["unk_token"] = model.unk_piece;
}

}  // namespace

bool is_sentencepiece_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.data();
  // The first field of the message is a piece; tiktoken files are base64 text.
  return !bytes.empty() && static_cast<uint8_t>(bytes[0]) == 0x0A;
}

TokenizerFile read_sentencepiece_file(const std::filesystem::path& path,
                                      const std::string& tokenizer_class, const Json& settings) {
  const PieceRule& rule = find_piece_rule(tokenizer_class, path.parent_path().string());
  TokenizerFile file{.subject = path.string()};
  const std::string bytes = read_file(path);
  const SentencePieces model = read_model(bytes, file.subject);
  const bool is_bpe = makes_bpe(rule, model.model_type != kUnigramModel);
  file.document = {{"model", {{"type", is_bpe ? "BPE" : "Unigram"}}}};
  if (!model.charsmap.empty()) {
    file.document["normalizer"] = {{"type", "Precompiled"},
                                   {"precompiled_charsmap", encode_base64(model.charsmap)}};
  }
  if (has_plain_pipeline(rule)) add_plain_pipeline(model, is_bpe, file.document);
  file.document["added_pieces"] = added_pieces(model);
  std::vector<ScoredPiece> of_file;
  for (const auto& piece : model.pieces) of_file.push_back({piece.text, piece.score});
  const std::vector<ScoredPiece> pieces = pieces_of_class(rule, settings, of_file);
  if (is_bpe) {
    for (const auto& piece : pieces) file.vocab.emplace_back(piece.text, file.vocab.size());
    file.has_vocab = true;
    add_merges(model, file);
    if (has_plain_pipeline(rule)) rename_pieces(settings, file);
  } else {
    Json list = Json::array();
    for (const auto& piece : pieces) list.push_back(Json::array({piece.text, piece.score}));
    if (model.unk_id >= 0) {
      file.document["settings"] = {{"unk_id", static_cast<size_t>(model.unk_id)}};
    }
    file.document["model"]["vocab"] = std::move(list);
  }
  return file;
}

}  // namespace strata::text
