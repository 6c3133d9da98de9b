// Byte-pair encoding as `tokenizers` does it: symbols, then merges of lowest rank, leftmost first.
// Short pieces scan for the best pair; long ones keep the pairs in a heap: O(n log n).
#include <algorithm>
#include <queue>

#include "strata/base/error.h"
#include "strata/text/component_json.h"
#include "strata/text/merge_table.h"
#include "strata/text/model.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

struct BpeOptions {
  bool ignore_merges = false;
  bool byte_fallback = false;
  bool fuse_unk = false;
  std::optional<std::string> unk_token;
  std::string prefix;  // continuing_subword_prefix
  std::string suffix;  // end_of_word_suffix
};

constexpr size_t kMaxScanned = 32;  // measured: beyond this a heap is faster

class Bpe : public Model {
 public:
  Bpe(Vocabulary vocabulary, MergeTable merges, std::vector<bool> is_result, BpeOptions options)
      : vocabulary_(std::move(vocabulary)),
        merges_(std::move(merges)),
        is_result_(std::move(is_result)),
        options_(std::move(options)) {
    if (options_.unk_token) unk_id_ = vocabulary_.find(*options_.unk_token);
    for (int byte = 0; options_.byte_fallback && byte < 256; ++byte) {
      byte_ids_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
    }
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  bool cuts_before(std::string_view mark) const override {
    return !options_.ignore_merges && options_.prefix.empty() && options_.suffix.empty() &&
           vocabulary_.find(mark) && !joins_before(mark);
  }

  void tokenize(std::string_view piece, std::vector<ModelToken>& out) const override {
    if (options_.ignore_merges) {
      if (const auto id = vocabulary_.find(piece)) {
        out.push_back({*id, 0, static_cast<uint32_t>(piece.size())});
        return;
      }
    }
    const size_t first = out.size();
    add_symbols(piece, out);
    const size_t kept = out.size() - first <= kMaxScanned
                            ? merge_scanning(out.data() + first, out.size() - first)
                            : merge_heap(out.data() + first, out.size() - first);
    out.resize(first + kept);
  }

 private:
  void add_symbols(std::string_view piece, std::vector<ModelToken>& out) const;
  bool add_byte_tokens(std::string_view symbol, uint32_t begin, uint32_t end,
                       std::vector<ModelToken>& out) const;
  size_t merge_scanning(ModelToken* tokens, size_t count) const;
  size_t merge_heap(ModelToken* tokens, size_t count) const;
  bool joins_before(std::string_view mark) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  std::vector<bool> is_result_;  // by id: tokens that merges make
  BpeOptions options_;
  std::optional<int32_t> unk_id_;
  int32_t byte_ids_[256] = {};
};

void Bpe::add_symbols(std::string_view piece, std::vector<ModelToken>& out) const {
  std::optional<ModelToken> unknown;
  std::string decorated;
  for (size_t i = 0; i < piece.size();) {
    const auto begin = static_cast<uint32_t>(i);
    i += char_length(piece, i);
    const auto end = static_cast<uint32_t>(i);
    std::string_view symbol = piece.substr(begin, end - begin);
    const bool has_prefix = begin > 0 && !options_.prefix.empty();
    const bool has_suffix = end == piece.size() && !options_.suffix.empty();
    if (has_prefix || has_suffix) {
      decorated = has_prefix ? options_.prefix : "";
      decorated.append(symbol).append(has_suffix ? options_.suffix : "");
      symbol = decorated;
    }
    if (const auto id = vocabulary_.find(symbol)) {
      if (unknown) out.push_back(*unknown);
      unknown.reset();
      out.push_back({*id, begin, end});
      continue;
    }
    if (options_.byte_fallback && add_byte_tokens(symbol, begin, end, out)) continue;
    if (!options_.unk_token) continue;  // the character is dropped
    if (!unk_id_) {
      throw FormatError(
          "tokenizer: found unk_token \"{}\" outside the vocabulary, expected it inside "
          "because the text has unknown characters",
          *options_.unk_token);
    }
    if (unknown && options_.fuse_unk) {
      unknown->end = end;
    } else {
      if (unknown) out.push_back(*unknown);
      unknown = ModelToken{*unk_id_, begin, end};
    }
  }
  if (unknown) out.push_back(*unknown);
}

// Whether a token has `mark` after another character, so that a merge may join what a cut parts.
bool Bpe::joins_before(std::string_view mark) const {
  for (int32_t id = 0; id < vocabulary_.end_id(); ++id) {
    const std::string* token = vocabulary_.token(id);
    if (token == nullptr || !is_result_[id]) continue;
    for (size_t at = token->find(mark, 1); at != std::string::npos;
         at = token->find(mark, at + 1)) {
      if (at < mark.size() || token->compare(at - mark.size(), mark.size(), mark) != 0) return true;
    }
  }
  return false;
}

// All bytes of a symbol or none.
bool Bpe::add_byte_tokens(std::string_view symbol, uint32_t begin, uint32_t end,
                          std::vector<ModelToken>& out) const {
  for (const char byte : symbol) {
    if (byte_ids_[static_cast<uint8_t>(byte)] < 0) return false;
  }
  for (const char byte : symbol) {
    out.push_back({byte_ids_[static_cast<uint8_t>(byte)], begin, end});
  }
  return true;
}

// Merges in place; returns how many tokens are left.
size_t Bpe::merge_scanning(ModelToken* tokens, size_t count) const {
  Merge pairs[kMaxScanned];  // pairs[i]: merge of tokens i and i + 1
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.find(tokens[i].id, tokens[i + 1].id);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == UINT32_MAX) break;
    tokens[best] = {pairs[best].result, tokens[best].begin, tokens[best + 1].end};
    std::copy(tokens + best + 2, tokens + count, tokens + best + 1);
    if (best + 2 < count) std::copy(pairs + best + 2, pairs + count - 1, pairs + best + 1);
    --count;
    if (best > 0) pairs[best - 1] = merges_.find(tokens[best - 1].id, tokens[best].id);
    if (best + 1 < count) pairs[best] = merges_.find(tokens[best].id, tokens[best + 1].id);
  }
  return count;
}

size_t Bpe::merge_heap(ModelToken* tokens, size_t count) const {
  struct Candidate {
    uint32_t rank;
    uint32_t left;
    int32_t result;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> next(count), previous(count);
  for (size_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? static_cast<uint32_t>(i + 1) : kNone;
    previous[i] = i > 0 ? static_cast<uint32_t>(i - 1) : kNone;
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](uint32_t left) {
    if (left == kNone || next[left] == kNone) return;
    const Merge merge = merges_.find(tokens[left].id, tokens[next[left]].id);
    if (merge.rank != UINT32_MAX) queue.push({merge.rank, left, merge.result});
  };
  for (size_t i = 0; i < count; ++i) offer(static_cast<uint32_t>(i));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    // A candidate is stale when its left token was merged away or either token has changed.
    if (tokens[top.left].id < 0 || next[top.left] == kNone) continue;
    const uint32_t right = next[top.left];
    if (merges_.find(tokens[top.left].id, tokens[right].id).rank != top.rank) continue;
    tokens[top.left] = {top.result, tokens[top.left].begin, tokens[right].end};
    tokens[right].id = -1;
    next[top.left] = next[right];
    if (next[right] != kNone) previous[next[right]] = top.left;
    offer(previous[top.left]);
    offer(top.left);
  }
  return static_cast<size_t>(
      std::remove_if(tokens, tokens + count, [](const ModelToken& t) { return t.id < 0; }) -
      tokens);
}

MergeTable make_merges(const TokenizerFile& file, const Vocabulary& vocabulary,
                       const std::string& prefix, const std::string& where,
                       std::vector<bool>& is_result) {
  is_result.assign(vocabulary.end_id(), false);
  MergeTable table(file.merges.size());
  const auto id_of = [&](const std::string& token, size_t rank) {
    const auto id = vocabulary.find(token);
    if (!id) {
      throw FormatError(
          "{}: found merge {} with the token \"{}\", expected a token of the vocabulary", where,
          rank, token);
    }
    return *id;
  };
  std::string result;
  for (size_t rank = 0; rank < file.merges.size(); ++rank) {
    const auto& [left, right] = file.merges[rank];
    if (right.size() < prefix.size()) {
      throw FormatError("{}: found merge {} with \"{}\", expected it to begin with \"{}\"", where,
                        rank, right, prefix);
    }
    const int32_t left_id = id_of(left, rank), right_id = id_of(right, rank);
    result.assign(left).append(right, prefix.size());
    const int32_t made = id_of(result, rank);
    is_result[made] = true;
    table.insert(left_id, right_id, {static_cast<uint32_t>(rank), made});
  }
  return table;
}

}  // namespace

std::unique_ptr<Model> make_bpe_model(TokenizerFile& file) {
  const Json& json = file.document.at("model");
  const std::string where = file.subject + ": model";
  if (!file.has_vocab) throw FormatError("{}: found no \"vocab\" object, expected one", where);
  if (!file.has_merges) throw FormatError("{}: found no \"merges\" list, expected one", where);
  if (const auto it = json.find("dropout"); it != json.end() && !it->is_null() && *it != 0.0) {
    throw FormatError("{}: found dropout {}, expected null; set it to null", where, it->dump());
  }
  BpeOptions options;
  options.ignore_merges = bool_field(json, "ignore_merges", false, where);
  options.byte_fallback = bool_field(json, "byte_fallback", false, where);
  options.fuse_unk = bool_field(json, "fuse_unk", false, where);
  options.unk_token = string_field(json, "unk_token", where);
  options.prefix = string_field(json, "continuing_subword_prefix", where).value_or("");
  options.suffix = string_field(json, "end_of_word_suffix", where).value_or("");
  Vocabulary vocabulary(std::move(file.vocab), where);
  std::vector<bool> is_result;
  MergeTable merges = make_merges(file, vocabulary, options.prefix, where, is_result);
  return std::make_unique<Bpe>(std::move(vocabulary), std::move(merges), std::move(is_result),
                               std::move(options));
}

}  // namespace strata::text
