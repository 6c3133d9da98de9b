// Oracle: the first copy of the weights, to the bit.
#include "strata/optim/adafactor.h"

#include <deque>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "idle_group.h"
#include "strata/comm/mesh.h"
#include "strata/models/registry.h"
#include "strata/shard/loading.h"

namespace strata::optim {
namespace {

// A shard group that adds in another order than that of the first copy.
class RoundingOtherwise final : public IdleGroup {
 public:
  explicit RoundingOtherwise(double factor) : factor_(factor) {}
  Done start_all_reduce(at::Tensor tensor, comm::Reduction) override {
    tensor.mul_(factor_);
    return done();
  }

 private:
  double factor_;
};

// The way from the first copy's ranks to the other's, which runs after it.
using Wire = std::deque<at::Tensor>;

class FirstCopy final : public IdleGroup {
 public:
  explicit FirstCopy(Wire& wire) : wire_(wire) {}
  int rank() const override { return 0; }
  Done start_broadcast(at::Tensor tensor, int) override {
    wire_.push_back(tensor.clone());
    return done();
  }

 private:
  Wire& wire_;
};

class SecondCopy final : public IdleGroup {
 public:
  explicit SecondCopy(Wire& wire) : wire_(wire) {}
  Done start_broadcast(at::Tensor tensor, int) override {
    tensor.copy_(wire_.front());
    wire_.pop_front();
    return done();
  }

 private:
  Wire& wire_;
};

// The homes after two steps of equal gradients.
std::vector<at::Tensor> homes_of(comm::Mesh& mesh) {
  auto model = models::create_model(Json{{"model_type", "llama"},
                                         {"vocab_size", 37},
                                         {"hidden_size", 20},
                                         {"intermediate_size", 28},
                                         {"num_hidden_layers", 1},
                                         {"num_attention_heads", 2},
                                         {"num_key_value_heads", 1},
                                         {"head_dim", 10}},
                                    {});
  shard::UnitStore store(*model, mesh, {});
  at::Generator generator = at::detail::createCPUGenerator(5);
  for (nn::Parameter* parameter : model->parameters()) {
    place_tensor(store, *parameter, at::randn(parameter->shape(), generator));
  }
  Adafactor optimizer(store, {});
  for (int step = 0; step < 2; ++step) {
    for (int u = 0; u < store.num_units(); ++u) {
      for (size_t s = 0; s < store.unit(u).segments.size(); ++s) {
        const at::Tensor& gradient = store.home(u, static_cast<int>(s)).gradient;
        gradient.copy_(at::randn(gradient.sizes(), generator));
      }
    }
    optimizer.step(/*learning_rate=*/0.1, /*gradient_scale=*/1);
  }
  std::vector<at::Tensor> homes;
  for (int u = 0; u < store.num_units(); ++u) {
    for (size_t s = 0; s < store.unit(u).segments.size(); ++s) {
      homes.push_back(store.home(u, static_cast<int>(s)).value.clone());
    }
  }
  return homes;
}

TEST(Adafactor, CopiesOfAWeightStayAlikeWhereTheirSumsAreNot) {
  Wire wire;
  comm::Mesh first = comm::make_fake_mesh(4, 2), second = comm::make_fake_mesh(4, 2);
  first.shard = std::make_unique<RoundingOtherwise>(1.5);
  first.replicate = std::make_unique<FirstCopy>(wire);
  const auto expected = homes_of(first);
  ASSERT_FALSE(wire.empty());
  second.shard = std::make_unique<RoundingOtherwise>(1.75);
  second.replicate = std::make_unique<SecondCopy>(wire);
  const auto found = homes_of(second);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  EXPECT_TRUE(wire.empty());
}

}  // namespace
}  // namespace strata::optim
