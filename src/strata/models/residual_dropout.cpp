#include "strata/models/residual_dropout.h"

#include "strata/nn/dropout.h"

namespace strata::models {

uint64_t dropout_place_id(int64_t layer, DropoutPlace place) {
  constexpr auto kOfLayer = static_cast<uint64_t>(DropoutPlace::kCount);
  return kFirstDropoutPlace + 1 + static_cast<uint64_t>(layer) * kOfLayer +
         static_cast<uint64_t>(place);
}

at::Tensor add_with_dropout(const nn::Linear& layer, const nn::Remakable& x,
                            const at::Tensor& residual, const ResidualDropout& dropout,
                            const nn::ForwardContext& context) {
  if (!context.drops() || dropout.rate == 0) {
    return dropout.is_last ? layer.forward_add_last(x, residual, context)
                           : layer.forward_add(x, residual, context);
  }
  const at::Tensor y =
      dropout.is_last ? layer.forward_last(x, context) : layer.forward(x.value, context);
  return nn::add_dropout(residual, y, dropout.rate, dropout.place_id, context,
                         !dropout.is_last || context.pass.wants_output);
}

}  // namespace strata::models
