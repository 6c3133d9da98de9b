// Chooses the model by its type.
#include "strata/text/model.h"

#include "strata/text/component_json.h"

namespace strata::text {

static std::unique_ptr<Model> make_inner_model(TokenizerFile& file) {
  const Json& json = require_field(file.document, "model", file.subject);
  const std::string where = file.subject + ": model";
  // Old files leave the type out: the first of these whose fields are there, as the reference.
  const auto named = string_field(json, "type", where);
  const auto has = [&](const char* key) { return json.contains(key); };
  const std::string type = named                                ? *named
                           : file.has_merges                    ? "BPE"
                           : has("max_input_chars_per_word")    ? "WordPiece"
                           : has("vocab") && has("unk_id")      ? "Unigram"
                           : file.has_vocab && has("unk_token") ? "WordLevel"
                                                                : "none";
  if (type == "BPE") return make_bpe_model(file);
  if (type == "Unigram") return make_unigram_model(file);
  if (type == "WordPiece") return make_word_piece_model(file);
  if (type == "WordLevel") return make_word_level_model(file);
  throw_unsupported(type, where, "BPE, Unigram, WordPiece, WordLevel");
}

std::unique_ptr<Model> make_model(TokenizerFile& file) {
  std::unique_ptr<Model> model = make_inner_model(file);
  return file.outer_vocab.empty() ? std::move(model) : make_mapped_model(std::move(model), file);
}

}  // namespace strata::text
