// WordPiece, BPEDecoder and CTC: decoders that put the spaces between words back.
#include <algorithm>

#include "strata/text/component_json.h"
#include "strata/text/decoder.h"

namespace strata::text {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// clean_up_tokenization of the reference, in its order.
void clean_up(std::string& text) {
  constexpr std::pair<const char*, const char*> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

class WordPiece : public Decoder {
 public:
  WordPiece(std::string prefix, bool cleans) : prefix_(std::move(prefix)), cleans_(cleans) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i].starts_with(prefix_)) {
        tokens[i].erase(0, prefix_.size());
      } else if (i > 0) {
        tokens[i] = " " + tokens[i];
      }
      if (cleans_) clean_up(tokens[i]);
    }
  }

 private:
  std::string prefix_;
  bool cleans_;
};

class SuffixToSpace : public Decoder {  // BPEDecoder
 public:
  explicit SuffixToSpace(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i], suffix_, i + 1 < tokens.size() ? " " : "");
    }
  }

 private:
  std::string suffix_;
};

class Ctc : public Decoder {
 public:
  Ctc(std::string pad, std::string delimiter, bool cleans)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleans_(cleans) {}
  void apply(std::vector<std::string>& tokens) const override {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (std::string& token : tokens) {
      replace_all(token, pad_, "");
      if (!cleans_) continue;
      clean_up(token);
      replace_all(token, delimiter_, " ");
    }
    std::erase(tokens, "");
  }

 private:
  std::string pad_, delimiter_;
  bool cleans_;
};

}  // namespace

std::unique_ptr<Decoder> make_word_decoder(const std::string& type, const Json& json,
                                           const std::string& where) {
  const auto text = [&](const char* key, const char* fallback) {
    return string_field(json, key, where).value_or(fallback);
  };
  if (type == "WordPiece") {
    return std::make_unique<WordPiece>(text("prefix", "##"),
                                       bool_field(json, "cleanup", true, where));
  }
  if (type == "BPEDecoder") return std::make_unique<SuffixToSpace>(text("suffix", "</w>"));
  if (type == "CTC") {
    return std::make_unique<Ctc>(text("pad_token", "<pad>"), text("word_delimiter_token", "|"),
                                 bool_field(json, "cleanup", true, where));
  }
  return nullptr;
}

}  // namespace strata::text
