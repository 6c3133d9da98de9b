// The memory of a run before it starts: builds what the run would build, without values, and walks
// it. Owns: how settings become the walked things. Never: prints.
#pragma once

#include <limits>
#include <optional>
#include <string>

#include "strata/config/run_config.h"
#include "strata/memory/plan.h"

namespace strata::train {

struct PlanRequest {
  int world_size = 1;
  int local_world_size = 1;  // ranks of one machine
  bool share_memory = true;  // they do, as comm/shm_group.h says
  // An accelerator with bf16 and direct transport instead of this machine's processors.
  bool on_device = false;
  // Tokens of the documents of the largest micro-batch, of pairs source and target in turn; empty:
  // as many as the settings allow.
  std::vector<int64_t> documents;
  std::vector<int64_t> eval_documents;
  // The evaluation batch whose sources are longest, where answers are written; empty: that of
  // eval_documents.
  std::vector<int64_t> answered_documents;
  // Documents of a forward pass that accompanies each micro-batch and evaluation batch, if any.
  std::vector<int64_t> beside_documents, eval_beside_documents;
  // Trained tokens of each of the four at most, in any batch; none: all that have a next token.
  std::optional<int64_t> num_trained, num_eval_trained;
  std::optional<int64_t> num_beside_trained, num_eval_beside_trained;
  // Whoever asks only whether a rank fits into this: the walk ends where more is in use, and what
  // the plan says is less than what the run would take.
  int64_t most_bytes = std::numeric_limits<int64_t>::max();
};

// Rows of the largest batch that only runs forward: of an evaluation, or while dpo or kto asks its
// reference; 0: there is none, or the latter takes the rows of training.
int64_t forward_rows(const config::RunConfig& config);

struct UnitFacts {
  std::string name;
  int64_t numel;        // of its tensors
  int64_t shard_bytes;  // at rest on one rank
};

struct RunPlan {
  memory::Plan memory;
  int64_t num_parameters = 0;
  int64_t num_trained = 0;
  int64_t largest_layer = 0;  // parameters of the largest single module
  int64_t largest_block = 0;  // of the largest decoder layer, or of a larger module beside them
  int64_t tokens = 0;         // of the micro-batch that was walked, of all who share it
  int64_t scratch_bytes = 0;  // of kernels and transports, in no account
  int shard_size = 1;
  int replicas = 1;
  int sequence_size = 1;
  at::ScalarType compute_type = at::kFloat;
  std::string assumed_ints;  // as in Trainee
  std::vector<UnitFacts> units;
};

// Seen from rank 0. Throws what assemble() throws for settings that cannot be.
RunPlan plan_run(const config::RunConfig& config, const PlanRequest& request);

// Blocks whose forward pass is run again in the micro-step that was walked.
int num_recomputed(const RunPlan& plan);

}  // namespace strata::train
