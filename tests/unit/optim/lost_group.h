// One rank of two whose collectives have been ended from outside: tensors are as they were, and no
// wait says so.
#pragma once

#include "idle_group.h"
#include "strata/base/error.h"
#include "strata/comm/liveness.h"

namespace strata::optim {

class LostGroup final : public IdleGroup, public comm::Liveness {
 public:
  // Alive at first.
  bool is_lost = false;
  void require_alive() const override {
    if (is_lost) throw CommError("reduce-scatter of rank 1: found it ended");
  }
};

}  // namespace strata::optim
