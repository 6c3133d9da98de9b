// One rank of two, whose collectives leave every tensor as it is; tests change one of them.
#pragma once

#include <memory>

#include "strata/comm/group.h"

namespace strata::optim {

class IdleGroup : public comm::Group {
 public:
  using Done = std::unique_ptr<comm::Work>;

  int rank() const override { return 1; }
  int size() const override { return 2; }
  comm::Transport transport() const override { return comm::Transport::kFake; }
  Done start_all_gather(at::Tensor, at::Tensor) override { return done(); }
  Done start_reduce_scatter(at::Tensor, at::Tensor) override { return done(); }
  Done start_all_reduce(at::Tensor, comm::Reduction) override { return done(); }
  Done start_broadcast(at::Tensor, int) override { return done(); }
  void meet() override {}
  Done start_all_to_all(at::Tensor, at::Tensor) override { return done(); }
  Done start_scatter(at::Tensor, at::Tensor, int) override { return done(); }

 protected:
  static Done done() {
    struct Ended final : comm::Work {
      void wait() override {}
    };
    return std::make_unique<Ended>();
  }
};

}  // namespace strata::optim
