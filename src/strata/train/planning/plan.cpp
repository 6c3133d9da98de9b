#include "strata/train/planning/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>

#include "strata/checkpoint/sharded.h"
#include "strata/checkpoint/state_pieces.h"
#include "strata/config/checks/rated_checks.h"
#include "strata/config/recipes.h"
#include "strata/libtorch/planned_device.h"
#include "strata/memory/allocator.h"
#include "strata/memory/device_probe.h"
#include "strata/memory/probe.h"
#include "strata/nn/beam_candidates.h"
#include "strata/nn/linear.h"
#include "strata/nn/loss_buffers.h"
#include "strata/ops/matmul/matmul.h"
#include "strata/ops/quant/int8_product.h"
#include "strata/shard/segments.h"
#include "strata/train/loop/answers.h"
#include "strata/train/saving/saving_policy.h"
#include "strata/train/setup/assemble.h"
#include "strata/train/setup/device.h"

namespace strata::train {
namespace {

// The documents of the longest rows; of pairs source and target in turn.
std::vector<int64_t> full_batch(int64_t rows, const config::RunConfig& config,
                                const models::Model& model) {
  if (config::recipe_of(config).has_encoder) {
    std::vector<int64_t> documents;
    for (int64_t i = 0; i < rows; ++i) {
      documents.insert(documents.end(),
                       {config.data.max_source_length, config.data.max_target_length});
    }
    return documents;
  }
  const int64_t longest = model.max_position_embeddings();
  const int64_t documents = config::recipe_of(config).reads_pairs ? 2 * rows : rows;
  return std::vector<int64_t>(static_cast<size_t>(documents),
                              std::min(config.data.max_length.value_or(longest), longest));
}

int64_t largest_layer(models::Model& model) {
  int64_t largest = 0;
  for (models::Block* block : model.blocks()) {
    for (nn::Parameter* parameter : block->parameters()) {
      largest = std::max(largest, parameter->numel());
    }
  }
  return largest;
}

int64_t largest_block(models::Model& model) {
  int64_t largest = largest_layer(model);
  for (models::Block* block : model.blocks()) {
    if (block->kind() != models::BlockKind::kLayer) continue;
    int64_t numel = 0;
    for (nn::Parameter* parameter : block->parameters()) numel += parameter->numel();
    largest = std::max(largest, numel);
  }
  return largest;
}

// The widest packing buffer of a linear layer's products: y = x W^T, dx = dy W, and fp32 sums over
// tokens, dW = dy^T x and of a branch dB = dy^T hidden, dA = dhidden^T x.
int64_t layer_scratch_bytes(const nn::Linear& layer, int64_t tokens, at::ScalarType compute) {
  const int64_t in = layer.in_features(), out = layer.out_features();
  const auto bytes = [compute](int64_t rows, int64_t columns, int64_t inner) {
    return ops::matmul_scratch_bytes(rows, columns, inner, compute, at::kFloat);
  };
  int64_t widest = std::max(ops::matmul_scratch_bytes(tokens, out, in, compute, compute),
                            ops::matmul_scratch_bytes(tokens, in, out, compute, compute));
  if (layer.weight().requires_grad()) widest = std::max(widest, bytes(out, in, tokens));
  if (const nn::LowRankBranch* branch = layer.low_rank()) {
    const int64_t rank = branch->a.shape()[0];
    widest = std::max({widest, bytes(out, rank, tokens), bytes(rank, in, tokens)});
  }
  return widest;
}

// The same of a forward pass alone, where rows of codes may be multiplied as such.
int64_t evaluated_scratch_bytes(const nn::Linear& layer, int64_t tokens, at::ScalarType compute) {
  const int64_t in = layer.in_features(), out = layer.out_features();
  const auto& quantization = layer.weight().quantization();
  if (quantization && quantization->format.kind == ops::quant::Kind::kInt8) {
    return ops::quant::code_product_scratch_bytes(tokens, out, in);
  }
  return ops::matmul_scratch_bytes(tokens, out, in, compute, compute);
}

// `evaluated`: tokens of a pass that only goes forward; 0: there is none.
int64_t kernel_scratch_bytes(models::Model& model, int64_t tokens, int64_t evaluated,
                             at::ScalarType compute) {
  int64_t widest = 0;
  for (models::Block* block : model.blocks()) {
    const bool is_head = block->kind() == models::BlockKind::kHead;
    for (const nn::Linear* layer : block->linears()) {
      const auto rows = [&](int64_t of) {
        return is_head ? nn::loss_rows_at_once(of, layer->out_features()) : of;
      };
      widest = std::max({widest, layer_scratch_bytes(*layer, rows(tokens), compute),
                         evaluated_scratch_bytes(*layer, rows(evaluated), compute)});
    }
  }
  return widest;
}

// Takes the sources out of documents that are source and target in turn.
std::vector<int64_t> take_sources(std::vector<int64_t>& documents) {
  std::vector<int64_t> sources, targets;
  for (size_t i = 0; i < documents.size(); ++i) {
    (i % 2 == 0 ? sources : targets).push_back(documents[i]);
  }
  documents = std::move(targets);
  return sources;
}

void describe_model(Trainee& trainee, RunPlan& plan) {
  for (nn::Parameter* parameter : trainee.model->parameters()) {
    if (!parameter->is_buffer()) plan.num_parameters += parameter->numel();
    if (parameter->requires_grad()) plan.num_trained += parameter->numel();
  }
  plan.largest_layer = largest_layer(*trainee.model);
  plan.largest_block = largest_block(*trainee.model);
  plan.compute_type = trainee.compute_type;
  plan.assumed_ints = trainee.assumed_ints;
  for (int u = 0; u < trainee.store->num_units(); ++u) {
    const shard::Unit& unit = trainee.store->unit(u);
    int64_t bytes = 0;
    for (size_t s = 0; s < unit.segments.size(); ++s) {
      bytes += static_cast<int64_t>(trainee.store->home(u, static_cast<int>(s)).value.nbytes());
    }
    plan.units.push_back({unit.name, unit.numel(), bytes});
  }
}

bool is_in_files(config::OffloadDevice device) { return device == config::OffloadDevice::kNvme; }

// What the settings send to files, and with an accelerator to the host's memory. A processor's
// memory is the host's.
std::vector<MemoryKind> offloaded_kinds(const config::ShardConfig& shard, bool on_device) {
  std::vector<MemoryKind> kinds{MemoryKind::kKeptInputs};
  const bool to_host = on_device && offloads_to_host(shard);
  if (to_host || is_in_files(shard.offload_param_device)) kinds.push_back(MemoryKind::kParameters);
  if (to_host || is_in_files(shard.offload_optimizer_device)) {
    kinds.push_back(MemoryKind::kOptimizer);
  }
  // Gradients go where the update is computed.
  if (to_host) kinds.push_back(MemoryKind::kGradients);
  if (on_device) kinds.push_back(MemoryKind::kSnapshot);
  return kinds;
}

// A plan makes no folder. Beside an accelerator the homes are where files would be read to.
config::RunConfig without_files(config::RunConfig config) {
  config::ShardConfig& shard = config.shard;
  shard.offload_params = offloads_to_host(shard);
  shard.offload_param_device = shard.offload_optimizer_device = config::OffloadDevice::kNone;
  shard.activation_offloading_path = "";
  return config;
}

// What this rank saves.
std::vector<checkpoint::LocalPiece> saved_pieces(const SavingPolicy& policy, Trainee& trainee) {
  if (!policy.saves) return {};
  return checkpoint::local_pieces(*trainee.store,
                                  policy.with_optimizer ? trainee.optimizer.get() : nullptr);
}

// The copy that the saver takes on start and keeps (train/saving/run_saver.h).
std::vector<checkpoint::LocalPiece> imagine_snapshot(
    const SavingPolicy& policy, const std::vector<checkpoint::LocalPiece>& pieces) {
  if (!policy.in_background || pieces.empty()) return {};
  return checkpoint::snapshot_memory(pieces);
}

// The two blocks from which a large file of a rank is written past the page cache.
int64_t saving_buffer_bytes(const std::vector<checkpoint::LocalPiece>& pieces) {
  const checkpoint::StreamedFrom streamed;
  uint64_t bytes = 0;
  for (const checkpoint::LocalPiece& piece : pieces) bytes += piece.data.nbytes();
  return bytes < streamed.bytes ? 0 : static_cast<int64_t>(2 * streamed.block_bytes);
}

// Buffers of transfers to and from files: of each size of shard those that are in flight at once,
// and three groups of what is updated (optim/sub_group_walk.h).
int64_t file_buffer_bytes(const config::ShardConfig& shard, shard::UnitStore& store) {
  constexpr int64_t kInFlight = 3;
  const bool parameters = is_in_files(shard.offload_param_device);
  const bool state = is_in_files(shard.offload_optimizer_device);
  std::map<std::pair<int64_t, at::ScalarType>, int64_t> shards;
  int64_t largest_trained = 0;
  for (const shard::SegmentPlace& place : shard::segments_of(store)) {
    const shard::Segment& segment = *place.layout;
    ++shards[{segment.shard_numel, segment.storage}];
    if (segment.trainable) largest_trained = std::max(largest_trained, segment.shard_numel);
  }
  int64_t bytes = 0;
  for (const auto& [size, count] : shards) {
    if (!parameters) break;
    bytes += std::min(count, kInFlight) * size.first *
             static_cast<int64_t>(c10::elementSize(size.second));
  }
  const int64_t lanes = (parameters ? 1 : 0) + (state ? 2 : 0);
  return bytes + kInFlight * lanes * std::min(shard.sub_group_size, largest_trained) *
                     static_cast<int64_t>(sizeof(float));
}

// Those that compare with a reference have a setting of how it is asked.
bool asks_reference(const config::RunConfig& config) {
  return std::ranges::count(config::recipe_of(config).settings,
                            std::string_view("precompute_ref_batch_size")) > 0;
}

bool evaluates(const config::RunConfig& config) {
  return config.train.eval_strategy != config::Interval::kNo || config.train.eval_on_start;
}

// What each rank computes in a step: the run's own rows, or as many as may come.
memory::WalkOptions walk_options(const config::RunConfig& config, const PlanRequest& request,
                                 const Trainee& trainee) {
  memory::WalkOptions walk;
  walk.most_bytes = request.most_bytes;
  walk.accumulation = config.train.gradient_accumulation_steps;
  walk.asks_first = asks_reference(config);
  walk.balances_experts = trainee.balancing.is_measured();
  walk.num_trained = request.num_trained;
  walk.num_eval_trained = request.num_eval_trained;
  walk.num_beside_trained = request.num_beside_trained;
  walk.num_eval_beside_trained = request.num_eval_beside_trained;
  walk.documents = !request.documents.empty() ? request.documents
                                              : full_batch(config.train.per_device_train_batch_size,
                                                           config, *trainee.model);
  if (config::estimates_divergence(config)) {
    walk.beside_documents =
        !request.beside_documents.empty()
            ? request.beside_documents
            : full_batch(config.train.per_device_train_batch_size, config, *trainee.model);
  }
  walk.evaluates = evaluates(config);
  if (const int64_t rows = forward_rows(config); rows > 0) {
    walk.eval_documents = !request.eval_documents.empty()
                              ? request.eval_documents
                              : full_batch(rows, config, *trainee.model);
    if (config::estimates_divergence(config)) {
      walk.eval_beside_documents = !request.eval_beside_documents.empty()
                                       ? request.eval_beside_documents
                                       : full_batch(rows, config, *trainee.model);
    }
    walk.answer_tokens = max_answer_tokens(config, trainee.generation);
    walk.answer_beams = answer_beams(config, trainee.generation).count;
    walk.answered_sources =
        !request.answered_documents.empty() ? request.answered_documents : walk.eval_documents;
  }
  return walk;
}

// In an encoder-decoder model each document is two.
void split_sources(memory::WalkOptions& walk) {
  walk.sources = take_sources(walk.documents);
  walk.eval_sources = take_sources(walk.eval_documents);
  walk.answered_sources = take_sources(walk.answered_sources);
}

// Of the search for answers, where there is one.
int64_t beam_scratch_bytes(const models::Model& model, const memory::WalkOptions& walk) {
  if (walk.answer_tokens == 0 || walk.answer_beams == 1) return 0;
  return nn::beam_scratch_bytes(static_cast<int64_t>(walk.answered_sources.size()),
                                walk.answer_beams * model.vocab_size());
}

// What is no tensor: of libraries on a device; on the host of kernels, of buffers of files (which
// are the host's whatever computes) and of the process.
int64_t scratch_bytes(const config::RunConfig& config, bool on_device, const comm::Mesh& mesh,
                      const Trainee& trainee, const std::vector<checkpoint::LocalPiece>& saved,
                      const RunPlan& plan, const memory::WalkOptions& walk) {
  if (on_device) return memory::device_library_bytes(mesh);
  const auto own = [&mesh](int64_t tokens) {
    return (tokens + mesh.sequence_size() - 1) / mesh.sequence_size();
  };
  int64_t evaluated = 0;
  for (const std::vector<int64_t>* documents :
       {&walk.eval_documents, &walk.eval_sources, &walk.beside_documents,
        &walk.eval_beside_documents}) {
    evaluated = std::max(evaluated, std::reduce(documents->begin(), documents->end()));
  }
  if (walk.answer_tokens > 0) {
    evaluated =
        std::max(evaluated, static_cast<int64_t>(walk.answered_sources.size()) * walk.answer_beams);
  }
  const int64_t of_kernels = std::max(
      kernel_scratch_bytes(*trainee.model, own(plan.tokens), own(evaluated), plan.compute_type),
      beam_scratch_bytes(*trainee.model, walk));
  return file_buffer_bytes(config.shard, *trainee.store) + saving_buffer_bytes(saved) + of_kernels +
         comm::imitated_process_bytes(mesh);
}

// Pages of weights that are quantised are mapped before there is a step with its buffers: by how
// much they exceed those.
int64_t mapped_beyond_steps(const memory::Plan& found, int64_t largest_mapped) {
  int64_t bytes = 0;
  for (const memory::Phase& phase : found.phases) {
    if (phase.name != "load") continue;
    bytes = std::max(bytes, phase.resident_bytes + largest_mapped - found.peak.resident_bytes -
                                memory::kWarmUpBytes);
  }
  return bytes;
}

}  // namespace

RunPlan plan_run(const config::RunConfig& config, const PlanRequest& request) {
  memory::Imagined imagined;
  const PlannedDeviceScope stands_for(request.on_device ? at::kCUDA : at::kCPU);
  if (request.on_device && config.train.full_determinism) choose_repeatable_kernels();
  memory::Account& account = imagined.account();
  account.begin_phase("load");
  account.keep_elsewhere(offloaded_kinds(config.shard, request.on_device));
  comm::Mesh mesh = comm::make_fake_mesh(
      request.world_size, mesh_shape(config.shard, request.world_size, request.local_world_size),
      {.local_world_size = request.local_world_size,
       .share_memory = request.share_memory,
       .have_accelerators = request.on_device});
  const auto trainee = assemble(without_files(config), mesh,
                                {.device = at::kMeta,
                                 .has_bf16 = request.on_device || cpu_has_bf16_arithmetic(),
                                 .has_fp16 = request.on_device});
  account.trim();
  RunPlan plan;
  describe_model(*trainee, plan);
  plan.shard_size = mesh.shard->size();
  plan.replicas = mesh.replicate->size();
  plan.sequence_size = mesh.sequence_size();

  memory::WalkOptions walk = walk_options(config, request, *trainee);
  for (const int64_t tokens : walk.documents) plan.tokens += tokens;
  if (config::recipe_of(config).has_encoder) split_sources(walk);
  const SavingPolicy policy = saving_policy(config);
  const auto saved = saved_pieces(policy, *trainee);
  plan.scratch_bytes = scratch_bytes(config, request.on_device, mesh, *trainee, saved, plan, walk);
  account.begin_phase("forward");
  const auto snapshot = imagine_snapshot(policy, saved);
  plan.memory =
      memory::walk(account, *trainee->store, *trainee->executor, *trainee->optimizer, walk);
  if (!request.on_device) {
    plan.scratch_bytes =
        std::max(plan.scratch_bytes, mapped_beyond_steps(plan.memory, trainee->largest_mapped));
  }
  return plan;
}

int64_t forward_rows(const config::RunConfig& config) {
  const int64_t of_evaluation = evaluates(config) ? config.train.per_device_eval_batch_size : 0;
  return std::max(of_evaluation, config.preference.precompute_ref_batch_size.value_or(0));
}

int num_recomputed(const RunPlan& plan) {
  return static_cast<int>(
      std::ranges::count_if(plan.memory.schedule, [](const memory::StepMemory& at) {
        return at.step.action == shard::Action::kBackward && shard::runs_again(at.step.keep);
      }));
}

}  // namespace strata::train
