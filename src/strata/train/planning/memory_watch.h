// The plan of a run beside what the run really takes. Owns: the plan and the baseline of this
// process. Never: prints.
#pragma once

#include <optional>
#include <string>

#include "strata/train/datasets.h"
#include "strata/train/loop/trainer.h"
#include "strata/train/planning/plan.h"

namespace strata::train {

// The request for the plan of a run with the largest micro-batch that the data can give.
PlanRequest plan_request(const config::RunConfig& config, const comm::Mesh& mesh,
                         int local_world_size, const Datasets& datasets, at::Device device);

// Watches the memory of one rank; not collective.
class MemoryWatch {
 public:
  // Plans the run, and notes what the process holds before it has a model.
  MemoryWatch(const config::RunConfig& config, const PlanRequest& request, at::Device device);

  // Call once the model is assembled: gives back what loading took, and from then on sorts what is
  // taken into phases and counts what is sent.
  void start(Trainee& trainee, Trainer& trainer);

  // What the run will take beyond what the process, or the GPU, has by now; none without a plan.
  std::optional<int64_t> bytes_to_come() const;

  std::string planned_line() const;
  // Planned and measured, after the last step.
  std::string measured_line() const;
  // Bytes sent in the last step, as planned and as the groups counted them, and what tensors took
  // from the system since the third step: nothing, unless a longer micro-batch came; and how many
  // tensors a step makes. Empty before the second step, without the tensors before the fourth.
  std::string steady_line() const;

 private:
  void note_step(const comm::SentBytes& sent);

  std::string measured_on_gpu() const;
  // Memory besides tensors of the process, or of libtorch on a GPU, once it has run a step.
  int64_t process_bytes() const;

  at::Device device_;
  RunPlan plan_;
  std::string failure_;  // why there is no plan
  int64_t process_bytes_ = 0;
  int64_t num_steps_ = 0;
  // What CPU tensors took.
  struct Taken {
    int64_t bytes = 0;       // resident
    memory::Amounts blocks;  // numbers of them
    int64_t num_small = 0;
  };
  Taken so_far_, after_third_step_;
  Taken last_step_;  // in it alone, except for the bytes
  comm::SentBytes sent_;
};

}  // namespace strata::train
