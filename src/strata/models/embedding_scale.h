// The factor by which a family multiplies the rows of its embedding. Never: the multiplication
// (nn/embedded_rows.h).
#pragma once

#include "strata/models/model.h"

namespace strata::models {

// An embedding whose rows are multiplied.
class HasRowScale {
 public:
  virtual ~HasRowScale() = default;
  virtual double scale() const = 0;
};

// 1 for families that take the rows as they are.
double embedding_scale(Model& model);

}  // namespace strata::models
