#include "strata/models/tied_model.h"

#include "strata/hf/model_folder.h"
#include "strata/models/weight_check.h"

namespace strata::models {

const hf::TensorInfo* TiedModel::find(const hf::ModelFolder& folder,
                                      const std::string& name) const {
  return find_weight(folder, name);
}

void TiedModel::untie() { output_layer().set_weight(untied_copy(kHeadWeight, *table(), storage_)); }

bool TiedModel::untie(const std::string& name) {
  if (!is_tied() || (name != table()->name() && name != kHeadWeight)) return false;
  untie();
  return true;
}

bool TiedModel::follow_tie(const hf::ModelFolder& folder) {
  if (!is_tied()) return false;
  const hf::TensorInfo* embedding = find(folder, table()->name());
  const hf::TensorInfo* head = find(folder, kHeadWeight);
  if (embedding == nullptr || head == nullptr || same_values(folder, *embedding, *head)) {
    return false;
  }
  untie();
  return true;
}

}  // namespace strata::models
