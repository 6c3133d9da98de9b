// What a family without virtual tokens answers.
#include "strata/models/model.h"

#include "strata/base/error.h"

namespace strata::models {

void Model::attach_virtual_tokens(nn::VirtualTokens /*tokens*/) {
  throw ConfigError(
      "peft_type: found prompt or prefix tuning with a model whose family has none, expected a "
      "method of its linear layers; choose LORA, IA3 or VERA");
}

nn::Parameter& Model::embedding_weight() {
  throw InternalError("model: found no embedding for virtual tokens; report this as a bug");
}

KeyValueShape Model::key_value_shape() const {
  throw InternalError("model: found no keys and values for a prefix; report this as a bug");
}

}  // namespace strata::models
