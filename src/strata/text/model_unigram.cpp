// The unigram language model: the sequence of pieces with the highest sum of log probabilities,
// found by one pass over the positions. Source: encode_optimized of `tokenizers`, which follows
// SentencePiece; its ties and its treatment of unknown characters are kept.
#include <algorithm>

#include "strata/base/error.h"
#include "strata/text/component_json.h"
#include "strata/text/model.h"
#include "strata/text/prefix_trie.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

constexpr double kUnknownPenalty = 10.0;

class Unigram : public Model {
 public:
  Unigram(Vocabulary vocabulary, std::vector<double> scores, int32_t unk_id, bool byte_fallback)
      : vocabulary_(std::move(vocabulary)), scores_(std::move(scores)), unk_id_(unk_id) {
    std::vector<std::pair<std::string_view, int32_t>> tokens;
    for (int32_t id = 0; id < vocabulary_.end_id(); ++id) {
      tokens.emplace_back(*vocabulary_.token(id), id);
    }
    trie_ = PrefixTrie(std::move(tokens));
    unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
    for (int byte = 0; byte_fallback && byte < 256; ++byte) {
      const auto id = vocabulary_.find(fmt::format("<0x{:02X}>", byte));
      byte_ids_[byte] = id.value_or(-1);
    }
    has_bytes_ = byte_fallback;
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  void tokenize(std::string_view piece, std::vector<ModelToken>& out) const override {
    thread_local std::vector<Node> nodes;
    nodes.assign(piece.size() + 1, {});
    find_best_paths(piece, nodes);
    const size_t first = out.size();
    // From the end: neighbouring unknown stretches become one.
    for (size_t end = piece.size(); end > 0;) {
      const Node& node = nodes[end];
      if (node.id != unk_id_) {
        out.push_back({node.id, node.begin, static_cast<uint32_t>(end)});
        end = node.begin;
        continue;
      }
      size_t begin = node.begin;
      while (begin > 0 && nodes[begin].id == unk_id_) begin = nodes[begin].begin;
      add_unknown(piece, begin, end, out);
      end = begin;
    }
    std::reverse(out.begin() + static_cast<ptrdiff_t>(first), out.end());
  }

 private:
  static constexpr uint32_t kUnreached = UINT32_MAX;
  struct Node {
    double score = 0;
    uint32_t begin = kUnreached;
    int32_t id = -1;
  };

  void find_best_paths(std::string_view piece, std::vector<Node>& nodes) const {
    const auto offer = [&](size_t begin, size_t end, int32_t id, double score) {
      const double total = score + nodes[begin].score;
      if (nodes[end].begin != kUnreached && !(total > nodes[end].score)) return;
      nodes[end] = {total, static_cast<uint32_t>(begin), id};
    };
    for (size_t at = 0; at < piece.size();) {
      const size_t length = char_length(piece, at);
      bool has_single = false;
      uint32_t node = PrefixTrie::kRoot;
      for (size_t end = at; end < piece.size();) {
        node = trie_.next(node, piece[end++]);
        if (node == PrefixTrie::kNone) break;
        const int32_t id = trie_.id(node);
        if (id < 0) continue;
        offer(at, end, id, scores_[id]);
        has_single |= end - at == length;
      }
      if (!has_single) {
        if (unk_id_ < 0) {
          throw FormatError(
              "tokenizer: found a character that no piece has (\"{}\"), expected an "
              "unk_id in the model",
              piece.substr(at, length));
        }
        offer(at, at + length, unk_id_, unknown_score_);
      }
      at += length;
    }
  }

  // A stretch of unknown characters, in reverse order: it may be a piece of very low score, its
  // bytes, or the unknown token.
  void add_unknown(std::string_view piece, size_t begin, size_t end,
                   std::vector<ModelToken>& out) const {
    const auto from = static_cast<uint32_t>(begin), to = static_cast<uint32_t>(end);
    const std::string_view text = piece.substr(begin, end - begin);
    if (const auto id = vocabulary_.find(text)) return out.push_back({*id, from, to});
    const bool all_bytes = has_bytes_ && std::all_of(text.begin(), text.end(), [&](char c) {
                             return byte_ids_[static_cast<uint8_t>(c)] >= 0;
                           });
    if (!all_bytes) return out.push_back({unk_id_, from, to});
    for (auto byte = text.rbegin(); byte != text.rend(); ++byte) {
      out.push_back({byte_ids_[static_cast<uint8_t>(*byte)], from, to});
    }
  }

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  int32_t unk_id_ = -1;
  double unknown_score_ = 0;
  bool has_bytes_ = false;
  int32_t byte_ids_[256] = {};
  PrefixTrie trie_;
};

}  // namespace

std::unique_ptr<Model> make_unigram_model(TokenizerFile& file) {
  Json& json = file.document.at("model");
  const std::string where = file.subject + ": model";
  Json& pieces = json["vocab"];
  if (!pieces.is_array() || pieces.empty()) {
    throw FormatError("{}: found no \"vocab\" list, expected [[piece, score], ...]", where);
  }
  std::vector<std::pair<std::string, int64_t>> entries;
  std::vector<double> scores;
  for (Json& piece : pieces) {
    if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number()) {
      throw FormatError("{}: found {} as piece {}, expected [piece, score]", where, piece.dump(),
                        entries.size());
    }
    scores.push_back(piece[1].get<double>());
    entries.emplace_back(std::move(piece[0].get_ref<std::string&>()), entries.size());
  }
  pieces = nullptr;
  const int64_t unk_id = int_field(json, "unk_id", -1, where);
  if (unk_id >= static_cast<int64_t>(entries.size())) {
    throw FormatError("{}: found unk_id {}, expected one below {}", where, unk_id, entries.size());
  }
  return std::make_unique<Unigram>(Vocabulary(std::move(entries), where, /*may_repeat=*/true),
                                   std::move(scores), static_cast<int32_t>(unk_id),
                                   bool_field(json, "byte_fallback", false, where));
}

}  // namespace strata::text
