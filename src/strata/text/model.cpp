// Chooses the model by its type.
#include "strata/text/model.h"

#include "strata/text/component_json.h"

namespace strata::text {

std::unique_ptr<Model> make_model(TokenizerFile& file) {
  const Json& json = require_field(file.document, "model", file.subject);
  const std::string where = file.subject + ": model";
  // Old files leave the type out; merges exist only in BPE.
  const auto named = string_field(json, "type", where);
  const std::string type = named ? *named : file.has_merges ? "BPE" : "none";
  if (type == "BPE") return make_bpe_model(file);
  throw_unsupported(type, where, "BPE");
}

}  // namespace strata::text
