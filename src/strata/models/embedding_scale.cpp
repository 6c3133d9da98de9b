#include "strata/models/embedding_scale.h"

namespace strata::models {

double embedding_scale(Model& model) {
  for (const Block* block : model.blocks()) {
    if (const auto* embedding = dynamic_cast<const HasRowScale*>(block)) return embedding->scale();
  }
  return 1.0;
}

}  // namespace strata::models
