// Whether a whole model's state has the experts that its model has here.
#include <algorithm>

#include "strata/base/error.h"
#include "strata/checkpoint/convert/convert.h"
#include "strata/hf/weight_names.h"
#include "strata/models/registry.h"

namespace strata::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_of_experts(const SavedTensor& tensor) {
  return tensor.is_parameter() && tensor.weight.find(".experts.") != std::string::npos &&
         (tensor.weight.ends_with("up_proj") || tensor.weight.ends_with("down_proj"));
}

}  // namespace

void require_own_experts(const SavedState& state) {
  const fs::path config = base_model_of(state) / "config.json";
  const auto found = std::ranges::find_if(state.tensors(), is_of_experts);
  if (state.is_adapter() || found == state.tensors().end() || !fs::is_regular_file(config)) return;
  const Json values = read_json_file(config);
  const auto model = models::create_model(values, {});
  const std::string name = hf::name_in_model(values, found->weight);
  const bool is_known = std::ranges::any_of(
      model->parameters(), [&](const nn::Parameter* each) { return each->name() == name; });
  if (is_known) return;
  throw FormatError(
      "{}: found the experts of a layer in one tensor (\"{}\"), as transformers trains them, "
      "expected one tensor for each, as the files of such a model have them; load the weights with "
      "transformers, write them with save_pretrained(), and train from that folder",
      state.path().string(), found->weight);
}

}  // namespace strata::checkpoint
