// What all families share, and what one without virtual tokens answers.
#include "strata/models/model.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/models/reward_head.h"

namespace strata::models {

std::vector<nn::Parameter*> Model::parameters() {
  std::vector<nn::Parameter*> list;
  // The reference's prompt encoder stands beside the model.
  std::vector<nn::Parameter*> encoder;
  if (const nn::VirtualTokens* tokens = virtual_tokens(); tokens != nullptr && tokens->projection) {
    encoder = tokens->projection->parameters();
  } else if (tokens != nullptr) {
    encoder = {tokens->values.get()};
  }
  std::set<const nn::Parameter*> seen(encoder.begin(), encoder.end());
  for (Block* block : blocks()) {
    for (nn::Parameter* parameter : block->parameters()) {
      if (seen.insert(parameter).second) list.push_back(parameter);
    }
  }
  std::ranges::stable_sort(list, {},
                           [&](const nn::Parameter* p) { return module_place(p->name()); });
  list.insert(list.end(), encoder.begin(), encoder.end());
  return list;
}

std::shared_ptr<nn::Parameter> Model::untied_copy(const std::string& name,
                                                  const nn::Parameter& tied,
                                                  at::ScalarType storage) {
  auto weight = std::make_shared<nn::Parameter>(name, tied.shape(), storage);
  weight->set_requires_grad(tied.requires_grad());
  weight->set_num_new_rows(tied.num_new_rows());
  return weight;
}

bool Model::is_of_document_head(const std::string& weight) const { return weight == kRewardWeight; }

nn::Parameter& Model::trainable_copy(const std::string& name) {
  const bool was_tied = untie(name);
  for (nn::Parameter* parameter : parameters()) {
    if (parameter->name() != name) continue;
    parameter->set_requires_grad(true);
    // After untying, the other name's parameter stands for the base's weight.
    const bool is_replaced = copied_.insert(name).second && !was_tied;
    if (is_replaced && !parameter->is_buffer()) num_replaced_elements_ += parameter->numel();
    return *parameter;
  }
  throw InternalError(
      "model: found a request to train \"{}\", expected the name of a weight; "
      "report this as a bug",
      name);
}

[[noreturn]] static void refuse_virtual_tokens() {
  throw ConfigError(
      "peft_type: found prompt or prefix tuning with a model whose family has none, expected a "
      "method of its linear layers; choose LORA, IA3 or VERA");
}

void Model::attach_virtual_tokens(nn::VirtualTokens /*tokens*/) { refuse_virtual_tokens(); }
nn::Parameter& Model::embedding_weight() { refuse_virtual_tokens(); }
KeyValueShape Model::key_value_shape() const { refuse_virtual_tokens(); }

}  // namespace strata::models
