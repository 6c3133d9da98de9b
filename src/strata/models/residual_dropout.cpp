#include "strata/models/residual_dropout.h"

#include "strata/nn/dropout.h"

namespace strata::models {

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
                         !dropout.is_last || context.wants_output);
}

}  // namespace strata::models
