// Walks a schedule: the only loop that runs blocks. Owns: the activations kept between the forward
// and the backward pass, and the shelf of those outside the chain. Never: decides the order;
// knows no model family and no strategy.
#pragma once

#include <functional>
#include <vector>

#include "strata/nn/attention/kept_attention.h"
#include "strata/shard/activation_home.h"
#include "strata/shard/schedule.h"
#include "strata/shard/unit_store.h"

namespace strata::shard {

// What the schedule builder must know, read off the model and its units.
ChainShape shape_of(models::Model& model, const Partition& partition);

// The blocks whose input the schedule moves elsewhere.
std::vector<int> offloaded_blocks(const Schedule& schedule);

// How a base in 8 bits is multiplied: decoded, or as codes by quantised activations (LLM.int8()).
// All other weights know one way.
enum class Products { kOfTraining, kOfEvaluation };

// Collective: every method, with the same schedule on every rank.
// Threads: one. An exception leaves units gathered; the executor cannot be used after one.
class Executor {
 public:
  // `activations`: where the schedules' offloads go. Requires: a place, if there are any.
  Executor(models::Model& model, UnitStore& store, Schedules schedules,
           const ActivationHomeOptions& activations = {});

  // Forward and backward of one micro-batch; gradients arrive in the homes (the first micro-step of
  // a step overwrites, later ones add). What the head tells goes where context.head says.
  void train(const nn::Batch& batch, const nn::ForwardContext& context, bool first_micro_step,
             bool last_micro_step);
  // Forward only, without dropout and noise, whatever the products.
  void evaluate(const nn::Batch& batch, const nn::ForwardContext& context,
                Products products = Products::kOfEvaluation);
  // The decoder's blocks alone. Requires: a model with an encoder, whose part of the decoder's
  // input context.generation.decoder_cache holds since an evaluate().
  void decode(const nn::Batch& batch, const nn::ForwardContext& context);
  // Call this whenever homes were written: by an update, or by loading after the first
  // micro-batch. Units that stay gathered are brought up to date before the next one.
  void parameters_changed() { is_stale_ = true; }

  const Schedules& schedules() const { return schedules_; }

  // Called before every step of the training or the evaluation schedule runs. One at a time;
  // empty: none.
  using Observer = std::function<void(const Step&, bool training)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

 private:
  struct Kept {
    at::Tensor input;
    nn::KeptAttention attention;   // with Keep::kAttention
    at::Tensor output;             // defined with Keep::kActivations and Keep::kSelected
    std::vector<at::Tensor> read;  // leaves of the shelf, as Block::reads(); undefined: untracked
    std::vector<at::Tensor> made;  // for the shelf, as Block::makes()
  };
  // An activation outside the chain. Its gradient is the sum over the blocks that read it, complete
  // when its maker runs backward.
  struct ShelfState {
    bool is_tracked = false;
    at::Tensor gradient;
  };

  void make_ready();
  // The micro-batch as the blocks see it, with the model's virtual tokens.
  void set_batch(const nn::Batch& batch);
  void forward_only(const Schedule& schedule, const nn::Batch& batch,
                    const nn::ForwardContext& context, Products products);
  void walk(const Schedule& schedule);
  // Whether the block's input is offloaded.
  bool is_away(int block) const { return away_ && away_->holds(block); }
  void forward(const Step& step);
  void loss(const Step& step);
  void backward(const Step& step);
  void wait_for_units(int block);
  void open_gradients(int block);
  void start_reduce(int u);
  at::Tensor run_block(const Step& step, const at::Tensor& input, Kept& kept, nn::Shelf& shelf);
  // Runs the block under autograd and keeps what its backward pass starts from and ends at.
  void record(const Step& step, const at::Tensor& input, Kept& kept);
  // The gradients of what the block read, those of the shelf added up, from those of its results.
  at::Tensor differentiate(const models::Block& block, const Kept& kept, at::Tensor gradient);

  std::vector<models::Block*> blocks_;
  UnitStore& store_;
  ChainShape shape_;
  // By place on the shelf: whether gradients may pass through; not through a frozen table.
  std::vector<bool> carries_gradients_;
  Schedules schedules_;
  std::unique_ptr<ActivationHome> away_;  // inputs that are offloaded; null: none are
  Observer observer_;
  bool is_started_ = false;
  bool is_stale_ = false;

  // State of the micro-batch that is running.
  bool walks_training_ = false;
  nn::ForwardContext context_;
  nn::Batch batch_;  // with virtual tokens, where there are any
  bool first_micro_step_ = true;
  bool last_micro_step_ = true;
  // The output of the last block that ran forward; in backward the gradient of its input.
  at::Tensor current_;
  std::vector<Kept> kept_;
  nn::Shelf shelf_;
  std::vector<ShelfState> shelf_states_;
  int reducing_unit_ = -1;
  int summing_unit_ = -1;  // over the copies, after its reduction; -1: none
};

}  // namespace strata::shard
