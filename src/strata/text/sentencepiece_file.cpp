// SentencePiece's ModelProto, read from its wire format (sentencepiece_model.proto): pieces with
// scores and types, the model's kind, the character map. The tokenizer is what transformers makes
// of it, not SentencePiece's own algorithm: the models were released for the former.
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/text/base64.h"
#include "strata/text/tokenizer_class.h"
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

// What named classes change in the list of pieces.
std::vector<SentencePieces::Piece> pieces_of_class(const SentencePieces& model,
                                                   const std::string& tokenizer_class) {
  auto pieces = model.pieces;
  if (tokenizer_class == "T5Tokenizer") {
    for (int i = 99; i >= 0; --i) pieces.push_back({fmt::format("<extra_id_{}>", i), 0, 0});
  } else if (tokenizer_class == "XLMRobertaTokenizer") {
    pieces.erase(pieces.begin(), pieces.begin() + std::min<ptrdiff_t>(3, pieces.size()));
    const SentencePieces::Piece first[] = {{"<s>"}, {"<pad>"}, {"</s>"}, {"<unk>"}};
    pieces.insert(pieces.begin(), std::begin(first), std::end(first));
    pieces.push_back({"<mask>"});
  }
  return pieces;
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
                                      const std::string& tokenizer_class) {
  TokenizerFile file{.subject = path.string()};
  const std::string bytes = read_file(path);
  const SentencePieces model = read_model(bytes, file.subject);
  const bool is_plain = tokenizer_class == kFileAsIs;
  const bool is_bpe =
      is_plain ? model.model_type != kUnigramModel
               : tokenizer_class != "T5Tokenizer" && tokenizer_class != "XLMRobertaTokenizer";
  file.document = {{"model", {{"type", is_bpe ? "BPE" : "Unigram"}}}};
  if (!model.charsmap.empty()) {
    file.document["normalizer"] = {{"type", "Precompiled"},
                                   {"precompiled_charsmap", encode_base64(model.charsmap)}};
  }
  if (is_plain) add_plain_pipeline(model, is_bpe, file.document);
  const auto pieces = pieces_of_class(model, tokenizer_class);
  Json list = Json::array();
  Json& added = file.document["added_tokens"] = Json::array();
  for (size_t id = 0; id < pieces.size(); ++id) {
    const auto& piece = pieces[id];
    if (is_bpe) file.vocab.emplace_back(piece.text, id);
    if (!is_bpe) list.push_back(Json::array({piece.text, piece.score}));
    if (piece.type == kControl || piece.type == kUserDefined) {
      added.push_back({{"id", id},
                       {"content", piece.text},
                       {"normalized", false},
                       {"special", piece.type == kControl}});
    }
  }
  file.has_vocab = is_bpe;
  if (is_bpe) add_merges(model, file);
  if (!is_bpe) file.document["model"]["vocab"] = std::move(list);
  return file;
}

}  // namespace strata::text
