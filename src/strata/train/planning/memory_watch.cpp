#include "strata/train/planning/memory_watch.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "strata/base/resident_memory.h"
#include "strata/config/checks/rated_checks.h"
#include "strata/config/recipes.h"
#include "strata/memory/allocator.h"
#include "strata/memory/device_probe.h"
#include "strata/memory/plan_text.h"
#include "strata/memory/probe.h"
#include "strata/train/planning/largest_batch.h"
#include "strata/train/planning/planned_room.h"

namespace strata::train {
namespace {

// A target of an encoder-decoder model trains whole, and who judges whole texts makes no logits.
bool learns_some_tokens(const config::RunConfig& config) {
  const config::RecipeRow& recipe = config::recipe_of(config);
  return !recipe.has_encoder && !recipe.judges_documents();
}

void enlarge(std::vector<int64_t>& documents, std::vector<int64_t> others) {
  const auto tokens = [](const std::vector<int64_t>& of) {
    return std::reduce(of.begin(), of.end());
  };
  if (tokens(others) > tokens(documents)) documents = std::move(others);
}

void enlarge(std::optional<int64_t>& number, int64_t other) {
  number = std::max(number.value_or(0), other);
}

}  // namespace

PlanRequest plan_request(const config::RunConfig& config, const comm::Mesh& mesh,
                         int local_world_size, const Datasets& datasets, at::Device device) {
  PlanRequest request;
  request.on_device = device.is_cuda();
  request.world_size = mesh.world->size();
  request.local_world_size = local_world_size;
  request.share_memory = comm::shares_memory(mesh);
  const auto of = [&](int64_t rows) {
    return BatchSize{.rows = rows, .is_filled = mesh.data_parallel_size() > 1};
  };
  const BatchSize trained = of(config.train.per_device_train_batch_size);
  request.documents = largest_batch(datasets.train, trained);
  const bool looks_beside = config::estimates_divergence(config);
  if (looks_beside) {
    request.beside_documents = largest_batch(datasets.train, trained, Share::kMismatched);
  }
  const bool learns_tokens = learns_some_tokens(config);
  if (learns_tokens) request.num_trained = most_trained(datasets.train, trained);
  if (learns_tokens && looks_beside) {
    request.num_beside_trained = most_trained(datasets.train, trained, Share::kMismatched);
  }
  const auto run_forward = [&](const data::TokenStore& set, int64_t rows) {
    enlarge(request.eval_documents, largest_batch(set, of(rows)));
    if (learns_tokens) enlarge(request.num_eval_trained, most_trained(set, of(rows)));
    if (!looks_beside) return;
    constexpr Share kBeside = Share::kMismatched;
    enlarge(request.eval_beside_documents, largest_batch(set, of(rows), kBeside));
    enlarge(request.num_eval_beside_trained, most_trained(set, of(rows), kBeside));
  };
  for (const data::TokenStore* set : datasets.evaluations()) {
    run_forward(*set, forward_rows(config));
  }
  if (const auto rows = config.preference.precompute_ref_batch_size) {
    run_forward(datasets.train, *rows);
  }
  if (datasets.eval && config.train.predict_with_generate) {
    request.answered_documents =
        largest_batch(*datasets.eval, of(forward_rows(config)), Share::kSource);
  }
  return request;
}

MemoryWatch::MemoryWatch(const config::RunConfig& config, const PlanRequest& request,
                         at::Device device)
    : device_(device) {
  try {
    plan_ = plan_run(config, request);
  } catch (const std::exception& e) {
    // A run does not depend on its plan. Settings that cannot be fail in the run itself.
    const std::string what = e.what();
    failure_ = what.substr(0, what.find('\n'));
  }
  memory::trim_cpu_memory();
  memory::reset_peak_resident();
  process_bytes_ = resident_bytes();
}

void MemoryWatch::start(Trainee& trainee, Trainer& trainer) {
  memory::trim_cpu_memory();
  memory::reset_device_peak(device_);
  trainer.observe([this](const comm::SentBytes& sent) { note_step(sent); });
  if (memory::Account* account = memory::cpu_account()) {
    const auto note = memory::phase_observer(*account);
    trainee.executor->observe([note](const shard::Step& step, bool training) {
      const std::lock_guard lock(memory::cpu_account_mutex());
      note(step, training);
    });
  }
}

int64_t MemoryWatch::process_bytes() const {
  if (device_.is_cuda()) return memory::kGpuWorkspaceBytes;
  return process_bytes_ + memory::kWarmUpBytes + plan_.scratch_bytes;
}

std::optional<int64_t> MemoryWatch::bytes_to_come() const {
  if (!failure_.empty()) return std::nullopt;
  return needed_bytes(plan_, device_) - held_bytes(device_);
}

std::string MemoryWatch::planned_line() const {
  if (!failure_.empty()) return "memory plan: none: " + failure_;
  return "memory plan: " + memory::peak_line(plan_.memory.peak, process_bytes());
}

std::string MemoryWatch::measured_line() const {
  if (!failure_.empty()) {
    return "memory: measured " + memory::size_text(memory::peak_resident_bytes());
  }
  if (device_.is_cuda()) return measured_on_gpu();
  const int64_t planned = memory::peak_bytes(plan_.memory.peak, process_bytes());
  std::string text = fmt::format(
      "memory: planned {}, measured {} (process {} before the model", memory::size_text(planned),
      memory::size_text(memory::peak_resident_bytes()), memory::size_text(process_bytes_));
  if (const memory::Account* account = memory::cpu_account()) {
    const std::lock_guard lock(memory::cpu_account_mutex());
    text += fmt::format("; tensors planned {}, measured {}",
                        memory::size_text(plan_.memory.peak.resident_bytes),
                        memory::size_text(account->peak().resident_bytes));
  }
  text += ")";
  return text;
}

// The allocator's peak since training began; loading is another matter.
std::string MemoryWatch::measured_on_gpu() const {
  const memory::DeviceMemory found = memory::device_memory(device_);
  const int64_t planned = plan_.memory.peak.peak_bytes + process_bytes();
  return fmt::format(
      "memory of {}: planned {}, measured {} in tensors at most ({:+.1f} %), {} with what the "
      "allocator kept; of the process {}",
      device_.str(), memory::size_text(planned), memory::size_text(found.allocated_peak),
      100.0 * static_cast<double>(found.allocated_peak - planned) / static_cast<double>(planned),
      memory::size_text(found.reserved_peak), memory::size_text(memory::peak_resident_bytes()));
}

void MemoryWatch::note_step(const comm::SentBytes& sent) {
  sent_ = sent;
  ++num_steps_;
  const memory::Account* account = memory::cpu_account();
  if (account == nullptr) return;
  const std::lock_guard lock(memory::cpu_account_mutex());
  Taken now{account->resident_bytes(), account->num_blocks_taken(), memory::num_small_tensors()};
  last_step_ = {now.bytes, now.blocks - so_far_.blocks, now.num_small - so_far_.num_small};
  so_far_ = now;
  if (num_steps_ == 3) after_third_step_ = now;
}

std::string MemoryWatch::steady_line() const {
  if (num_steps_ < 2 || !failure_.empty()) return "";
  std::string text = fmt::format("wire: planned {} bytes sent in a step, counted {}",
                                 plan_.memory.sent_per_step.total(), sent_.total());
  if (memory::cpu_account() == nullptr || num_steps_ <= 3) return text;
  // What blocks compute is made anew by every step, from memory that the step before gave back.
  const memory::Amounts later = so_far_.blocks - after_third_step_.blocks;
  int64_t lasting = 0;
  std::string temporary;
  for (int k = 0; k < kNumMemoryKinds; ++k) {
    const auto kind = static_cast<MemoryKind>(k);
    const bool is_temporary = kind == MemoryKind::kActivations || kind == MemoryKind::kLogits ||
                              kind == MemoryKind::kRuntime;
    if (!is_temporary) lasting += later[kind];
    if (!is_temporary || last_step_.blocks[kind] == 0) continue;
    temporary += fmt::format("{} {}, ", memory::name_of(kind), last_step_.blocks[kind]);
  }
  return text + fmt::format(
                    "; tensors took {} bytes more after step 3, and {} blocks for parameters, "
                    "gradients, optimizer, slots and transport; temporary ones of the last step: "
                    "{}below {} KiB {}",
                    so_far_.bytes - after_third_step_.bytes, lasting, temporary,
                    memory::kSmallestBlock / 1024, last_step_.num_small);
}

}  // namespace strata::train
