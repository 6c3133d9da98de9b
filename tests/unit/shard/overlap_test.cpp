// Oracle: the order of events, told by groups and executor; and the sums, which that order must not
// change: with an imagined second copy each gradient is twice what one copy has.
#include <gtest/gtest.h>

#include "strata/comm/fake_group.h"
#include "strata/comm/mesh.h"
#include "strata/comm/single_group.h"
#include "strata/models/registry.h"
#include "strata/shard/executor.h"
#include "strata/shard/loading.h"

namespace strata::shard {
namespace {

using Events = std::vector<std::string>;

class ToldWork final : public comm::Work {
 public:
  ToldWork(std::unique_ptr<comm::Work> work, Events& events, std::string name)
      : work_(std::move(work)), events_(events), name_(std::move(name)) {}
  void wait() override {
    work_->wait();
    events_.push_back("end " + name_);
  }

 private:
  std::unique_ptr<comm::Work> work_;
  Events& events_;
  std::string name_;
};

// Tells when sums begin and are waited for.
class ToldGroup final : public comm::Group {
 public:
  ToldGroup(std::unique_ptr<comm::Group> group, Events& events)
      : group_(std::move(group)), events_(events) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  comm::Transport transport() const override { return comm::Transport::kFake; }

 private:
  std::unique_ptr<comm::Work> start_all_gather(at::Tensor out, at::Tensor in) override {
    return group_->all_gather(out, in);
  }
  std::unique_ptr<comm::Work> start_reduce_scatter(at::Tensor out, at::Tensor in) override {
    return told("scatter", group_->reduce_scatter(out, in));
  }
  std::unique_ptr<comm::Work> start_all_reduce(at::Tensor tensor, comm::Reduction op) override {
    return told("sum", group_->all_reduce(tensor, op));
  }
  std::unique_ptr<comm::Work> start_all_to_all(at::Tensor out, at::Tensor in) override {
    return group_->all_to_all(out, in);
  }
  std::unique_ptr<comm::Work> start_broadcast(at::Tensor tensor, int root) override {
    return group_->broadcast(tensor, root);
  }
  std::unique_ptr<comm::Work> start_scatter(at::Tensor out, at::Tensor in, int root) override {
    return group_->scatter(out, in, root);
  }
  void meet() override { group_->barrier(); }

  std::unique_ptr<comm::Work> told(const std::string& what, std::unique_ptr<comm::Work> work) {
    const std::string name = what + " " + std::to_string(++number_);
    events_.push_back("begin " + name);
    return std::make_unique<ToldWork>(std::move(work), events_, name);
  }

  std::unique_ptr<comm::Group> group_;
  Events& events_;
  int number_ = 0;
};

nn::Batch small_batch() {
  nn::Batch batch;
  batch.offsets = {0, 24};
  batch.ids = at::arange(24, at::kLong);
  batch.targets = batch.ids.clone();
  batch.positions = at::arange(24, at::kLong);
  batch.token_keys = at::arange(24, at::kLong);
  return batch;
}

struct Walked {
  Events events;
  std::vector<at::Tensor> gradients;  // by piece
};

// One step of three layers, each a unit with one segment.
Walked walk(int copies, at::ScalarType reduce_type, int micro_steps) {
  Walked walked;
  comm::Mesh mesh{
      std::make_unique<comm::FakeGroup>(0, 2 * copies),
      std::make_unique<ToldGroup>(std::make_unique<comm::FakeGroup>(0, 2), walked.events), nullptr,
      nullptr};
  mesh.replicate = copies == 1 ? comm::make_single_group()
                               : std::make_unique<ToldGroup>(
                                     std::make_unique<comm::FakeGroup>(0, copies), walked.events);
  const auto model = models::create_model(Json{{"model_type", "llama"},
                                               {"vocab_size", 40},
                                               {"hidden_size", 16},
                                               {"intermediate_size", 24},
                                               {"num_hidden_layers", 3},
                                               {"num_attention_heads", 2},
                                               {"num_key_value_heads", 1},
                                               {"max_position_embeddings", 64},
                                               {"tie_word_embeddings", false}},
                                          {});
  UnitStore store(*model, mesh, {.reduce_type = reduce_type});
  fill_homes(store, [](const nn::Parameter& parameter, int64_t begin, const at::Tensor& out) {
    out.copy_(at::sin(at::arange(out.numel()) + begin + parameter.numel()) * 0.1);
    return true;
  });
  Executor executor(*model, store, build_schedules(shape_of(*model, store.partition()), {}));
  executor.observe([&](const Step& step, bool) {
    if (step.action == Action::kBackward) walked.events.push_back("backward");
  });
  nn::LossSums loss;
  const nn::ForwardContext context{.training = true, .head = {.sums = &loss}};
  const nn::Batch batch = small_batch();
  for (int i = 0; i < micro_steps; ++i) {
    executor.train(batch, context, i == 0, i + 1 == micro_steps);
  }
  for (int u = 0; u < store.num_units(); ++u) {
    for (const Piece& piece : pieces_of(store.unit(u).segments[0], mesh.shard->rank())) {
      walked.gradients.push_back(
          store.home(u, 0).gradient.narrow(0, piece.shard_begin, piece.length).clone());
    }
  }
  return walked;
}

size_t place_of(const Events& events, const std::string& event) {
  return static_cast<size_t>(std::ranges::find(events, event) - events.begin());
}

int64_t backwards_between(const Events& events, const std::string& first, const std::string& last) {
  const auto at = events.begin();
  return std::count(at + static_cast<std::ptrdiff_t>(place_of(events, first)),
                    at + static_cast<std::ptrdiff_t>(place_of(events, last)), "backward");
}

TEST(SumOverCopies, RunsBesideTheBackwardOfTheNextUnit) {
  for (const auto reduce_type : {at::kFloat, at::kBFloat16}) {
    const Events events = walk(/*copies=*/2, reduce_type, /*micro_steps=*/2).events;
    // Head, three layers, embedding; sums in the last micro-step alone.
    constexpr int kUnits = 5;
    EXPECT_EQ(std::ranges::count_if(events, [](auto& e) { return e.starts_with("begin sum"); }),
              kUnits);
    EXPECT_EQ(std::ranges::count_if(events, [](auto& e) { return e.starts_with("begin scatter"); }),
              2 * kUnits);
    for (int unit = 1; unit <= kUnits; ++unit) {
      const std::string sum = "sum " + std::to_string(unit);
      const std::string scatter = "scatter " + std::to_string(kUnits + unit);
      EXPECT_LT(place_of(events, "end " + scatter), place_of(events, "begin " + sum));
      EXPECT_LT(place_of(events, "end " + sum), events.size());
      // The last two have nothing left to hide behind.
      const bool has_next = unit <= kUnits - 2;
      EXPECT_EQ(backwards_between(events, "begin " + sum, "end " + sum), has_next ? 1 : 0) << unit;
      EXPECT_EQ(backwards_between(events, "begin " + scatter, "end " + scatter),
                unit < kUnits ? 1 : 0)
          << unit;
    }
  }
}

TEST(SumOverCopies, IsTheSumAtAnyDistance) {
  for (const auto reduce_type : {at::kFloat, at::kBFloat16}) {
    const Walked one = walk(1, reduce_type, 2), two = walk(2, reduce_type, 2);
    for (size_t i = 0; i < one.gradients.size(); ++i) {
      const at::Tensor expected = one.gradients[i].to(reduce_type).to(at::kFloat) * 2;
      EXPECT_TRUE(at::equal(two.gradients[i], expected)) << i;
      EXPECT_GT(two.gradients[i].abs().max().item<float>(), 0);
    }
  }
}

}  // namespace
}  // namespace strata::shard
