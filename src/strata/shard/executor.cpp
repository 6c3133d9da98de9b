#include "strata/shard/executor.h"

#include <algorithm>

#include <torch/csrc/autograd/autograd.h>

#include "strata/base/error.h"
#include "strata/libtorch/memory_kind.h"
#include "strata/libtorch/without_autograd.h"
#include "strata/nn/embedding.h"

namespace strata::shard {
namespace {

// Not those of an embedding without a low-rank branch and without layers or a norm after it. What
// is a vector there is a norm's.
bool backward_reads_parameters(models::Block& block) {
  if (block.kind() != models::BlockKind::kEmbedding || !block.linears().empty()) return true;
  const auto is_vector = [](const nn::Parameter* one) { return one->shape().size() == 1; };
  if (std::ranges::any_of(block.parameters(), is_vector)) return true;
  const nn::Embedding* embedding = block.embedding();
  return embedding != nullptr && embedding->low_rank() != nullptr;
}

bool trains(models::Block& block) {
  return std::ranges::any_of(block.parameters(),
                             [](nn::Parameter* p) { return p->requires_grad(); });
}

}  // namespace

std::vector<int> offloaded_blocks(const Schedule& schedule) {
  std::vector<int> blocks;
  for (const Step& step : schedule) {
    if (step.action == Action::kOffload) blocks.push_back(step.index);
  }
  return blocks;
}

ChainShape shape_of(models::Model& model, const Partition& partition) {
  ChainShape shape;
  shape.block_units = partition.block_units;
  for (models::Block* block : model.blocks()) {
    shape.block_trains.push_back(trains(*block));
    shape.backward_reads_parameters.push_back(backward_reads_parameters(*block));
  }
  for (const Unit& unit : partition.units) shape.unit_trains.push_back(unit.trains());
  shape.decoder_begin = model.decoder_begin();
  return shape;
}

Executor::Executor(models::Model& model, UnitStore& store, Schedules schedules,
                   const ActivationHomeOptions& activations)
    : blocks_(model.blocks()),
      store_(store),
      shape_(shape_of(model, store.partition())),
      carries_gradients_(static_cast<size_t>(model.num_shelved())),
      schedules_(std::move(schedules)),
      kept_(blocks_.size()),
      shelf_(carries_gradients_.size()),
      shelf_states_(shelf_.size()) {
  for (const models::Block* block : blocks_) {
    for (const models::Shelved& made : block->makes()) {
      if (made.has_gradient) carries_gradients_[static_cast<size_t>(made.slot)] = true;
    }
  }
  const std::vector<int> offloaded = offloaded_blocks(schedules_.training);
  if (offloaded.empty()) return;
  away_ = std::make_unique<ActivationHome>(store.options().device, offloaded, activations);
}

void Executor::make_ready() {
  if (!is_started_) {
    walk(schedules_.start);
  } else if (is_stale_) {
    walk(schedules_.refresh);
  }
  is_started_ = true;
  is_stale_ = false;
}

void Executor::train(const nn::Batch& batch, const nn::ForwardContext& context,
                     bool first_micro_step, bool last_micro_step) {
  make_ready();
  walks_training_ = true;
  context_ = context;
  set_batch(batch);
  first_micro_step_ = first_micro_step;
  last_micro_step_ = last_micro_step;
  walk(last_micro_step ? schedules_.training : schedules_.accumulation);
}

void Executor::evaluate(const nn::Batch& batch, const nn::ForwardContext& context,
                        Products products) {
  forward_only(schedules_.evaluation, batch, context, products);
}

void Executor::decode(const nn::Batch& batch, const nn::ForwardContext& context) {
  forward_only(schedules_.decoding, batch, context, Products::kOfEvaluation);
}

void Executor::forward_only(const Schedule& schedule, const nn::Batch& batch,
                            const nn::ForwardContext& context, Products products) {
  make_ready();
  walks_training_ = false;
  context_ = context;
  set_batch(batch);
  context_.training = products == Products::kOfTraining;
  context_.disable_dropout = true;
  context_.embedding_noise = 0;
  walk(schedule);
}

void Executor::set_batch(const nn::Batch& batch) {
  context_.batch = &batch;
  const nn::VirtualTokens* tokens = store_.model().virtual_tokens();
  if (tokens == nullptr) return;
  batch_ = nn::with_virtual_tokens(batch, *tokens);
  context_.batch = &batch_;
}

void Executor::walk(const Schedule& schedule) {
  const MemoryScope scope(MemoryKind::kActivations);
  for (const Step& step : schedule) {
    if (observer_) observer_(step, walks_training_);
    switch (step.action) {
      case Action::kGather:
        store_.gather(step.index, step.part);
        break;
      case Action::kRelease:
        store_.release(step.index, step.part);
        break;
      case Action::kForward:
        forward(step);
        break;
      case Action::kLoss:
        loss(step);
        break;
      case Action::kBackward:
        backward(step);
        break;
      case Action::kReduce:
        start_reduce(step.index);
        break;
      case Action::kRefresh:
        store_.refresh(step.index);
        break;
      case Action::kRead:
        store_.start_read(step.index);
        break;
      case Action::kOffload:
        away_->send(step.index, current_);
        break;
      case Action::kFetch:
        away_->fetch(step.index);
        break;
    }
  }
  for (int* unit : {&summing_unit_, &reducing_unit_}) {
    if (*unit >= 0) store_.wait_reduce(*unit);
    *unit = -1;
  }
  store_.finish_transfers();
  current_ = at::Tensor();
  shelf_.assign(shelf_.size(), at::Tensor());
  shelf_states_.assign(shelf_.size(), ShelfState{});
}

void Executor::wait_for_units(int block) {
  for (int u : shape_.block_units[static_cast<size_t>(block)]) store_.wait_gather(u);
}

void Executor::open_gradients(int block) {
  for (int u : shape_.block_units[static_cast<size_t>(block)]) {
    if (shape_.unit_trains[static_cast<size_t>(u)] && !store_.has_open_gradients(u)) {
      store_.open_gradients(u, first_micro_step_);
    }
  }
}

void Executor::start_reduce(int u) {
  // One reduction in flight: its buffer is the price of the overlap, and one hides the transfer.
  // After it the sum of the unit before over the copies, which takes place in its result (a
  // 16-bit one over Gloo has a buffer of its own: replica_buffer).
  if (summing_unit_ >= 0) store_.wait_reduce(summing_unit_);
  if (reducing_unit_ >= 0) store_.settle_reduce(reducing_unit_);
  store_.reduce(u, last_micro_step_);
  summing_unit_ = std::exchange(reducing_unit_, u);
}

// A leaf that makes autograd record the block (I4). The embedding has no input: an empty one does.
static at::Tensor tracked(const at::Tensor& input) {
  at::Tensor leaf = input.defined() ? input.detach() : at::empty({0});
  leaf.set_requires_grad(true);
  return leaf;
}

at::Tensor Executor::run_block(const Step& step, const at::Tensor& input, Kept& kept,
                               nn::Shelf& shelf) {
  nn::ForwardContext context = context_;
  context.pass = {.wants_output = step.action != Action::kBackward,
                  .remakes_inputs = step.keep == Keep::kSelected,
                  .kept_attention = step.keep == Keep::kAttention ? &kept.attention : nullptr,
                  .shelf = &shelf};
  return blocks_[static_cast<size_t>(step.index)]->forward(input, context);
}

void Executor::record(const Step& step, const at::Tensor& input, Kept& kept) {
  models::Block& block = *blocks_[static_cast<size_t>(step.index)];
  at::AutoGradMode record(true);
  kept.input = tracked(input);
  nn::Shelf shelf = shelf_;
  for (const int slot : block.reads()) {
    at::Tensor& read = shelf[static_cast<size_t>(slot)];
    // A frozen maker wants no gradient, but weights of this block that multiply what it made do.
    const bool has_gradient = shelf_states_[static_cast<size_t>(slot)].is_tracked ||
                              (shape_.block_trains[static_cast<size_t>(step.index)] &&
                               carries_gradients_[static_cast<size_t>(slot)]);
    if (has_gradient) read = tracked(read);
    kept.read.push_back(has_gradient ? read : at::Tensor());
  }
  kept.output = run_block(step, kept.input, kept, shelf);
  for (const models::Shelved& made : block.makes()) {
    const auto slot = static_cast<size_t>(made.slot);
    kept.made.push_back(shelf[slot]);
    shelf_[slot] = shelf[slot].detach();
  }
}

void Executor::forward(const Step& step) {
  wait_for_units(step.index);
  Kept& kept = kept_[static_cast<size_t>(step.index)];
  for (const models::Shelved& made : blocks_[static_cast<size_t>(step.index)]->makes()) {
    shelf_states_[static_cast<size_t>(made.slot)].is_tracked =
        made.has_gradient && step.keep != Keep::kNothing;
  }
  if (step.keep == Keep::kActivations || step.keep == Keep::kSelected) {
    record(step, current_, kept);
    current_ = kept.output.detach();
    return;
  }
  if (runs_again(step.keep) && !is_away(step.index)) kept.input = current_;
  const WithoutAutograd plain;
  current_ = run_block(step, current_.defined() ? current_ : at::empty({0}), kept, shelf_);
}

void Executor::loss(const Step& step) {
  wait_for_units(step.index);
  open_gradients(step.index);
  at::AutoGradMode record(true);
  const at::Tensor input = tracked(current_);
  current_ = at::Tensor();
  const at::Tensor loss = run_block(step, input, kept_[static_cast<size_t>(step.index)], shelf_);
  const WithoutAutograd plain;
  current_ = torch::autograd::grad({loss}, {input})[0];
}

at::Tensor Executor::differentiate(const models::Block& block, const Kept& kept,
                                   at::Tensor gradient) {
  std::vector<at::Tensor> outputs, gradients, inputs{kept.input};
  const auto add_output = [&](const at::Tensor& output, at::Tensor of_output) {
    if (!of_output.defined() || !output.requires_grad()) return;
    outputs.push_back(output);
    gradients.push_back(std::move(of_output));
  };
  add_output(kept.output, std::move(gradient));
  const std::vector<models::Shelved> made = block.makes();
  for (size_t i = 0; i < made.size(); ++i) {
    const auto slot = static_cast<size_t>(made[i].slot);
    add_output(kept.made[i], std::move(shelf_states_[slot].gradient));
    shelf_states_[slot].gradient = at::Tensor();
    shelf_[slot] = at::Tensor();
  }
  for (const at::Tensor& read : kept.read) {
    if (read.defined()) inputs.push_back(read);
  }
  const WithoutAutograd plain;
  const auto results = torch::autograd::grad(outputs, inputs, gradients, /*retain_graph=*/false,
                                             /*create_graph=*/false, /*allow_unused=*/true);
  const std::vector<int> slots = block.reads();
  for (size_t i = 0, next = 1; i < slots.size(); ++i) {
    if (!kept.read[i].defined()) continue;
    const at::Tensor& part = results[next++];
    ShelfState& state = shelf_states_[static_cast<size_t>(slots[i])];
    if (!part.defined() || !state.is_tracked) continue;
    state.gradient = state.gradient.defined() ? state.gradient.add_(part) : part;
  }
  return results[0];
}

void Executor::backward(const Step& step) {
  // Where a gradient needs the ids alone (an embedding's), the unit is not gathered again.
  if (shape_.backward_reads_parameters[static_cast<size_t>(step.index)]) wait_for_units(step.index);
  open_gradients(step.index);
  Kept kept = std::move(kept_[static_cast<size_t>(step.index)]);
  kept_[static_cast<size_t>(step.index)] = Kept{};
  if (runs_again(step.keep)) {
    const at::Tensor input =
        is_away(step.index) ? away_->take(step.index) : std::exchange(kept.input, at::Tensor());
    kept.attention.run_again();
    record(step, input, kept);
  }
  current_ = differentiate(*blocks_[static_cast<size_t>(step.index)], kept, std::move(current_));
}

}  // namespace strata::shard
