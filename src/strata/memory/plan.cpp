#include "strata/memory/plan.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "strata/base/labels.h"
#include "strata/comm/mesh.h"
#include "strata/nn/attention/decoder_cache.h"
#include "strata/nn/attention/sequence_parallel.h"
#include "strata/nn/beam_candidates.h"
#include "strata/nn/experts/expert_balance.h"
#include "strata/optim/adamw.h"
#include "strata/shard/segments.h"

namespace strata::memory {
namespace {

// The last token of each document has no next one; of the others as many are trained, which does
// not matter but to ranks that share rows: rank 0 has the first ones.
void untrain(nn::Batch& batch, std::optional<int64_t> num_trained) {
  auto* targets = batch.targets.mutable_data_ptr<int64_t>();
  int64_t left = std::max<int64_t>(num_trained.value_or(batch.offsets.back()), 1);
  for (size_t d = 1; d < batch.offsets.size(); ++d) {
    const int64_t last = batch.offsets[d] - 1;
    for (int64_t i = batch.offsets[d - 1]; i < last; ++i) {
      if (left == 0) targets[i] = kNotTrained;
      left = std::max<int64_t>(left - 1, 0);
    }
    targets[last] = kNotTrained;
  }
}

// What one pass reads.
struct Rows {
  std::vector<int64_t> documents{}, sources{};
  std::optional<int64_t> num_trained{};
};

// A micro-batch of which only the targets have values: the loss looks for trained tokens. Beside
// sources all are.
nn::Batch imagined_batch(const Rows& rows) {
  const std::vector<int64_t>&documents = rows.documents, &sources = rows.sources;
  nn::Batch batch;
  batch.offsets = {0};
  for (int64_t tokens : documents) batch.offsets.push_back(batch.offsets.back() + tokens);
  const int64_t tokens = batch.offsets.back();
  const auto on_meta = at::TensorOptions().dtype(at::kLong).device(at::kMeta);
  batch.ids = at::empty({tokens}, on_meta);
  batch.positions = at::empty({tokens}, on_meta);
  batch.token_keys = at::empty({tokens}, on_meta);
  batch.targets = at::zeros({tokens}, at::kLong);
  if (!sources.empty()) {
    batch.source = std::make_shared<const nn::Batch>(imagined_batch({.documents = sources}));
    return batch;
  }
  untrain(batch, rows.num_trained);
  batch.first_labels.assign(documents.size(), 0);
  return batch;
}

// One token of each answer, as train/loop/decode_answers.cpp makes it.
nn::Batch imagined_answers(std::shared_ptr<const nn::Batch> source, int64_t beams) {
  nn::Batch batch;
  batch.offsets.resize((source->offsets.size() - 1) * static_cast<size_t>(beams) + 1);
  std::iota(batch.offsets.begin(), batch.offsets.end(), int64_t{0});
  batch.ids = at::empty({batch.offsets.back()}, source->ids.options());
  batch.positions = batch.token_keys = at::empty_like(batch.ids);
  batch.source = std::move(source);
  return batch;
}

// What the answers' earlier tokens left, were there so many of them. Each takes the place of fewer,
// as a token more does.
void lengthen(nn::DecoderCache& cache, int64_t length) {
  const MemoryScope scope(MemoryKind::kActivations);
  for (nn::DecoderCache::Layer& layer : cache.layers) {
    for (at::Tensor* rows : {&layer.keys, &layer.values}) {
      *rows = at::empty({rows->size(0), length, rows->size(2), rows->size(3)}, rows->options());
    }
  }
  cache.length = length;
}

class Walk {
 public:
  Walk(Account& account, shard::UnitStore& store, shard::Executor& executor,
       optim::Optimizer& optimizer, const WalkOptions& options)
      : account_(account),
        store_(store),
        executor_(executor),
        optimizer_(optimizer),
        options_(options) {}

  Plan run() {
    executor_.observe(phase_observer(account_));
    if (options_.asks_first) ask();
    if (!is_over()) optimizer_step();
    if (!is_over()) repeat_step();
    if (!is_over()) evaluate();
    if (!is_over() && options_.evaluates) repeat_evaluation();
    executor_.observe({});
    if (!is_over()) save();
    Plan plan{account_.phases(), account_.peak(), account_.elsewhere(), sent_, {}};
    // Last, because it ends amid a step, where strategies hold what they give back after one.
    if (!is_over()) trace_schedule();
    plan.schedule = std::move(schedule_);
    return plan;
  }

 private:
  bool is_over() const { return account_.peak().peak_bytes > options_.most_bytes; }

  // What rank 0 has of it.
  nn::Batch imagined_part(const Rows& rows) const {
    const nn::Batch batch = imagined_batch(rows);
    const auto& sequence = store_.mesh().sequence;
    return sequence ? nn::part_of(batch, *sequence) : batch;
  }

  // Until it finds room for every block: the first step leaves other gaps behind than later ones,
  // so that a block may fit in the second and no longer in the third.
  void repeat_step() {
    constexpr int kLeast = 2, kMost = 5;
    for (int i = 1; i <= kMost; ++i) {
      const int64_t before = account_.peak().resident_bytes;
      sent_ = {};
      optimizer_step();
      if (i >= kLeast && account_.peak().resident_bytes == before) return;
    }
  }

  // The same, between steps: what a longer batch makes anew, such as angles, stays where it was
  // made, amid the room of the steps that follow and of the next evaluation.
  void repeat_evaluation() {
    constexpr int kMost = 3;
    for (int i = 0; i < kMost && !is_over(); ++i) {
      const int64_t before = account_.peak().resident_bytes;
      for (int step = 0; step < 2; ++step) {
        sent_ = {};  // the first step refreshes nothing, the evaluation has
        optimizer_step();
      }
      evaluate();
      if (account_.peak().resident_bytes == before) return;
    }
  }

  // Micro-steps between the first and the last are alike: one stands for all.
  void optimizer_step() {
    const int64_t walked = std::min<int64_t>(options_.accumulation, 3);
    for (int64_t i = 0; i < walked; ++i) {
      const bool is_middle = i > 0 && i + 1 < walked;
      micro_step(i == 0, i + 1 == walked, is_middle ? options_.accumulation - 2 : 1);
    }
    account_.begin_phase("update");
    const comm::SentBytes before = comm::sent_bytes(store_.mesh());
    optim::global_gradient_norm(store_);
    optimizer_.step(/*learning_rate=*/0, /*gradient_scale=*/1);
    executor_.parameters_changed();
    sent_ += comm::sent_bytes(store_.mesh()) - before;
  }

  void micro_step(bool first, bool last, int64_t times) {
    const comm::SentBytes before = comm::sent_bytes(store_.mesh());
    if (!options_.beside_documents.empty()) {
      run_forward({options_.beside_documents, {}, options_.num_beside_trained},
                  shard::Products::kOfTraining);
    }
    const nn::Batch batch =
        imagined_part({options_.documents, options_.sources, options_.num_trained});
    nn::LossSums sums;
    nn::ForwardContext context;
    context.training = true;
    context.head.sums = &sums;
    nn::ExpertBalance balance(/*scale=*/1, store_.mesh().sequence.get());
    if (options_.balances_experts) context.balance = &balance;
    executor_.train(batch, context, first, last);
    balance.complete();
    sent_ += (comm::sent_bytes(store_.mesh()) - before) * times;
  }

  // The export of a model gathers segment after segment, as checkpoint::export_model does.
  void save() {
    account_.begin_phase("save");
    for (const shard::SegmentPlace& place : shard::trained_segments_of(store_)) {
      store_.with_stored(place.unit, place.segment, [](const at::Tensor&) {});
    }
  }

  void evaluate() {
    if (!options_.evaluates) return;
    if (!options_.eval_beside_documents.empty()) {
      run_forward({options_.eval_beside_documents, {}, options_.num_eval_beside_trained},
                  shard::Products::kOfEvaluation);
    }
    run_forward({options_.eval_documents, options_.eval_sources, options_.num_eval_trained},
                shard::Products::kOfEvaluation);
    if (options_.answer_tokens > 0 && !is_over()) answer();
  }

  // Keys and values grow with every token, so that the last one takes most. Of long answers not
  // every token is walked.
  void answer() {
    constexpr int64_t kMostWalked = 32;
    const auto source =
        std::make_shared<const nn::Batch>(imagined_batch({.documents = options_.answered_sources}));
    models::Model& model = store_.model();
    nn::DecoderCache cache(static_cast<int64_t>(model.blocks().size()) - model.decoder_begin() - 2);
    const auto step = [&] {
      const nn::Batch next = imagined_answers(source, options_.answer_beams);
      at::Tensor logits;
      nn::ForwardContext context;
      context.generation.decoder_cache = &cache;
      context.head.next_logits = &logits;
      if (cache.length == 0) {
        executor_.evaluate(next, context);
      } else {
        executor_.decode(next, context);
      }
      ++cache.length;
      if (options_.answer_beams > 1) cache.parents = chosen_beams(logits);
    };
    step();
    const int64_t last = options_.answer_tokens - 1;
    const int64_t walked = std::min(last, kMostWalked);
    for (int64_t i = 1; i <= walked; ++i) {
      const int64_t earlier = last * i / walked;
      if (earlier > cache.length) lengthen(cache, earlier);
      step();
    }
  }

  // From the logits of the answers' beams to those that go on.
  at::Tensor chosen_beams(at::Tensor& logits) const {
    const int64_t beams = options_.answer_beams, rows = logits.size(0);
    const at::Tensor scores = at::empty({rows / beams, beams}, logits.options());
    nn::beam_candidates(logits, scores, std::min(2 * beams, beams * logits.size(1)), {});
    return at::empty({rows}, scores.options().dtype(at::kLong));
  }

  // As train/recipes/reference_table.h does: what it leaves, such as angles, lies amid the room of
  // the steps.
  void ask() {
    const auto run = [this](const Rows& rows, shard::Products products) {
      if (!rows.documents.empty() && !is_over()) run_forward(rows, products);
    };
    run({options_.documents, {}, options_.num_trained}, shard::Products::kOfTraining);
    run({options_.beside_documents, {}, options_.num_beside_trained}, shard::Products::kOfTraining);
    run({options_.eval_documents, {}, options_.num_eval_trained}, shard::Products::kOfEvaluation);
    run({options_.eval_beside_documents, {}, options_.num_eval_beside_trained},
        shard::Products::kOfEvaluation);
  }

  void run_forward(const Rows& rows, shard::Products products) {
    account_.begin_phase("evaluate");
    const nn::Batch batch = imagined_part(rows);
    nn::LossSums sums;
    nn::ForwardContext context;
    context.head.sums = &sums;
    executor_.evaluate(batch, context, products);
  }

  void trace_schedule() {
    executor_.observe([this](const shard::Step& step, bool) {
      const int64_t high_water = account_.take_high_water();
      if (!schedule_.empty()) schedule_.back().peak_bytes = high_water;
      schedule_.push_back({step, 0});
    });
    const comm::SentBytes sent = sent_;
    account_.begin_phase("backward");
    micro_step(/*first=*/true, /*last=*/options_.accumulation == 1, 1);
    sent_ = sent;
    if (!schedule_.empty()) schedule_.back().peak_bytes = account_.take_high_water();
  }

  Account& account_;
  shard::UnitStore& store_;
  shard::Executor& executor_;
  optim::Optimizer& optimizer_;
  const WalkOptions& options_;
  comm::SentBytes sent_;
  std::vector<StepMemory> schedule_;
};

}  // namespace

shard::Executor::Observer phase_observer(Account& account) {
  return [&account](const shard::Step& step, bool training) {
    if (!training) {
      account.begin_phase("evaluate");
    } else if (step.action == shard::Action::kLoss || step.action == shard::Action::kBackward) {
      account.begin_phase("backward");
    } else if (step.action == shard::Action::kForward || account.phase() != "backward") {
      // Gathers before the first block are part of its pass.
      account.begin_phase("forward");
    }
  };
}

Plan walk(Account& account, shard::UnitStore& store, shard::Executor& executor,
          optim::Optimizer& optimizer, const WalkOptions& options) {
  return Walk(account, store, executor, optimizer, options).run();
}

std::string text_of(const shard::Step& step) {
  std::string text = shard::describe({step});
  text.pop_back();
  return text;
}

}  // namespace strata::memory
