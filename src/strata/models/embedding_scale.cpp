#include "strata/models/embedding_scale.h"

#include "strata/models/gemma4/blocks.h"
#include "strata/models/llama/blocks.h"

namespace strata::models {

double embedding_scale(Model& model) {
  for (const Block* block : model.blocks()) {
    if (const auto* embedding = dynamic_cast<const LlamaEmbedding*>(block)) {
      return embedding->scale();
    }
    if (const auto* embedding = dynamic_cast<const Gemma4Embedding*>(block)) {
      return embedding->scale();
    }
  }
  return 1.0;
}

}  // namespace strata::models
