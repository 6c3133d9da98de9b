// A SentencePiece model beside a vocab.json, as M2M-100 and Marian have them: the first cuts, the
// second gives ids to the pieces.
#include <utility>

#include "strata/base/error.h"
#include "strata/text/model.h"

namespace strata::text {
namespace {

class MappedModel : public Model {
 public:
  MappedModel(std::unique_ptr<Model> inner, Vocabulary vocabulary, int32_t unk_id,
              const std::string& unk)
      : inner_(std::move(inner)), vocabulary_(std::move(vocabulary)), unk_id_(unk_id) {
    const Vocabulary& pieces = inner_->vocabulary();
    for (int32_t id = 0; id < pieces.end_id(); ++id) {
      const std::string* piece = pieces.token(id);
      const bool is_unknown = piece == nullptr || *piece == unk;
      ids_.push_back(is_unknown ? kUnknown : vocabulary_.find(*piece).value_or(unk_id_));
    }
  }

  void tokenize(std::string_view piece, std::vector<ModelToken>& out) const override {
    const size_t first = out.size();
    inner_->tokenize(piece, out);
    for (size_t i = first; i < out.size(); ++i) {
      ModelToken& token = out[i];
      const int32_t id = ids_.at(static_cast<size_t>(token.id));
      // What the pieces lack, the other file may have.
      token.id = id != kUnknown
                     ? id
                     : vocabulary_.find(piece.substr(token.begin, token.end - token.begin))
                           .value_or(unk_id_);
    }
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  bool cuts_before(std::string_view mark) const override { return inner_->cuts_before(mark); }

 private:
  static constexpr int32_t kUnknown = -1;
  std::unique_ptr<Model> inner_;
  Vocabulary vocabulary_;
  int32_t unk_id_;
  std::vector<int32_t> ids_;  // by those of `inner_`
};

}  // namespace

std::unique_ptr<Model> make_mapped_model(std::unique_ptr<Model> inner, TokenizerFile& file) {
  Vocabulary vocabulary(std::move(file.outer_vocab), file.subject);
  const auto unk = vocabulary.find(file.outer_unk);
  if (!unk) {
    throw FormatError("{}: found no \"{}\" in the vocabulary, expected the unknown token",
                      file.subject, file.outer_unk);
  }
  return std::make_unique<MappedModel>(std::move(inner), std::move(vocabulary), *unk,
                                       file.outer_unk);
}

}  // namespace strata::text
