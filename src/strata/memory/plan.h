// The memory of a run, found by walking its own schedule on tensors without data: the units, the
// executor, the blocks, autograd and the optimizer are those of the run, only values are missing.
// Owns: the walk. Never: settings; train/ builds what is walked.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "strata/comm/mesh.h"
#include "strata/memory/account.h"
#include "strata/optim/optimizer.h"
#include "strata/shard/executor.h"

namespace strata::memory {

struct WalkOptions {
  std::vector<int64_t> documents{};       // tokens of each document of the largest micro-batch
  std::vector<int64_t> eval_documents{};  // of an evaluation, and of what runs before all steps
  bool evaluates = false;                 // between the steps and after them
  // Documents of a pass without gradients before that of each micro-batch, and before that of each
  // evaluation batch; empty: there is none.
  std::vector<int64_t> beside_documents{}, eval_beside_documents{};
  // Trained tokens of the documents of each; none: all that have a next token, of targets all.
  std::optional<int64_t> num_trained{}, num_eval_trained{};
  std::optional<int64_t> num_beside_trained{}, num_eval_beside_trained{};
  int64_t accumulation = 1;
  bool asks_first = false;  // all of these run forward before the first step
  // Encoder-decoder models: each document's source. Empty: there are none.
  std::vector<int64_t> sources{}, eval_sources{};
  // Sources of the documents that an evaluation answers; the most tokens of an answer, 0: none.
  std::vector<int64_t> answered_sources{};
  int64_t answer_tokens = 0;
  int64_t answer_beams = 1;       // of the search for an answer
  bool balances_experts = false;  // the step asks a nn::ExpertBalance
  // The walk ends after the first phase in which more than this is in use.
  int64_t most_bytes = std::numeric_limits<int64_t>::max();
};

// One step of the schedule, and the most that was in use while it ran.
struct StepMemory {
  shard::Step step;
  int64_t peak_bytes;
};

struct Plan {
  std::vector<Phase> phases;  // in order: load, forward, backward, update, ...
  Phase peak;
  Amounts elsewhere;                 // beside it, in files or in the host memory of an accelerator
  comm::SentBytes sent_per_step;     // by this rank, over all micro-steps of an optimizer step
  std::vector<StepMemory> schedule;  // of a micro-step in the steady state
};

// Runs optimizer steps until one takes no more room, evaluations with their answers, with steps
// between them, in the same way, and an export.
// Requires: everything rests on device meta, on a mesh of fake groups, and `account` is that of the
// Imagined that lives. Loading has been done in its phase "load".
Plan walk(Account& account, shard::UnitStore& store, shard::Executor& executor,
          optim::Optimizer& optimizer, const WalkOptions& options);

// Sorts what is taken into phases by the schedule's steps: "forward", "backward", "evaluate".
shard::Executor::Observer phase_observer(Account& account);

// "backward 3 (recompute)": one line of the schedule.
std::string text_of(const shard::Step& step);

}  // namespace strata::memory
