// Oracle: the same model, schedule and optimizer run with values on this machine, whose allocator
// counts every block by kind.
#include "strata/memory/plan.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "../temporary_folder.h"
#include "strata/base/error.h"
#include "strata/comm/mesh.h"
#include "strata/libtorch/planned_device.h"
#include "strata/memory/allocator.h"
#include "strata/memory/plan_text.h"
#include "strata/models/registry.h"
#include "strata/ops/attention/attention.h"
#include "strata/ops/attention/biased_attention.h"
#include "strata/ops/matmul/matmul.h"
#include "strata/ops/quant/quantized.h"
#include "strata/optim/adamw.h"

namespace strata::memory {
namespace {

// Wide enough that every tensor that matters is in the account.
const char* kConfig = R"({"model_type": "llama", "vocab_size": 640, "hidden_size": 128,
    "intermediate_size": 320, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": false})";

struct Built {
  Built(at::Device device, const shard::ScheduleOptions& options, bool freeze_first_layers,
        const shard::ActivationHomeOptions& activations = {}, bool freeze_embedding = false,
        at::ScalarType compute_type = at::kFloat)
      : mesh(comm::make_fake_mesh(1, 1)),
        model(models::create_model(parse_json(kConfig, "config"), {})) {
    if (freeze_first_layers) {
      for (nn::Parameter* parameter : model->parameters()) {
        parameter->set_requires_grad(parameter->name().find("layers.2") != std::string::npos);
      }
    }
    for (nn::Parameter* parameter : model->parameters()) {
      const bool is_embedding = parameter->name().find("embed") != std::string::npos;
      if (freeze_embedding && is_embedding) parameter->set_requires_grad(false);
    }
    store = std::make_unique<shard::UnitStore>(
        *model, mesh, shard::StoreOptions{.compute_type = compute_type, .device = device});
    const shard::ChainShape shape = shard::shape_of(*model, store->partition());
    executor = std::make_unique<shard::Executor>(
        *model, *store, shard::build_schedules(shape, options), activations);
    const MemoryScope scope(MemoryKind::kOptimizer);
    optimizer = std::make_unique<optim::AdamW>(*store, optim::AdamWOptions{});
  }

  comm::Mesh mesh;
  std::unique_ptr<models::Model> model;
  std::unique_ptr<shard::UnitStore> store;
  std::unique_ptr<shard::Executor> executor;
  std::unique_ptr<optim::Optimizer> optimizer;
};

const std::vector<int64_t> kDocuments{200, 120, 160};

nn::Batch real_batch() {
  nn::Batch batch;
  batch.offsets = {0};
  for (int64_t tokens : kDocuments) batch.offsets.push_back(batch.offsets.back() + tokens);
  const int64_t tokens = batch.offsets.back();
  batch.ids = at::arange(tokens, at::kLong);
  batch.ids.remainder_(640);
  batch.targets = batch.ids.clone();
  batch.positions = at::arange(tokens, at::kLong);
  batch.token_keys = at::arange(tokens, at::kLong);
  for (size_t d = 1; d < batch.offsets.size(); ++d) batch.targets[batch.offsets[d] - 1] = -100;
  return batch;
}

shard::ActivationHomeOptions in_files(const std::filesystem::path& folder) {
  return {.place = shard::ActivationHomeOptions::Place::kFiles,
          .files = {.folder = folder},
          .reserved_bytes = 4096};
}

// The account is the process's: what this run adds is measured in phases of its own names.
Phase measured_backward(const shard::ScheduleOptions& options, bool frozen,
                        const std::string& phase_name, at::ScalarType compute_type = at::kFloat) {
  Account& account = *cpu_account();
  const strata::testing::TemporaryFolder folder;
  Built built(at::kCPU, options, frozen, in_files(folder.path()), /*freeze_embedding=*/false,
              compute_type);
  built.executor->observe([&](const shard::Step& step, bool) {
    const bool backward =
        step.action == shard::Action::kLoss || step.action == shard::Action::kBackward;
    account.begin_phase(phase_name + (backward ? "" : " forward"));
  });
  const nn::Batch batch = real_batch();
  nn::LossSums sums;
  nn::ForwardContext context;
  context.training = true;
  context.head.sums = &sums;
  for (int step = 0; step < 2; ++step) {
    built.executor->train(batch, context, true, true);
    built.optimizer->step(1e-3, 1);
    built.executor->parameters_changed();
  }
  account.begin_phase("between tests");
  for (const Phase& phase : account.phases()) {
    if (phase.name == phase_name) return phase;
  }
  return {};
}

TEST(Plan, EqualsWhatARunTakesByKind) {
  ASSERT_TRUE(install_cpu_allocator(/*even_in_sanitized_builds=*/true));
  for (const auto checkpointing : {shard::Checkpointing::kFull, shard::Checkpointing::kAttention,
                                   shard::Checkpointing::kSelective, shard::Checkpointing::kNone}) {
    for (bool frozen : {true, false}) {
      const std::string name =
          fmt::format("checkpointing {} frozen {}", static_cast<int>(checkpointing), frozen);
      SCOPED_TRACE(name);
      shard::ScheduleOptions options;
      options.activation_checkpointing = checkpointing;
      const Phase measured = measured_backward(options, frozen, name);

      Imagined imagined;
      imagined.account().begin_phase("load");
      Built built(at::kMeta, options, frozen);
      const Plan plan = walk(imagined.account(), *built.store, *built.executor, *built.optimizer,
                             {.documents = kDocuments});
      const auto planned = std::ranges::find(plan.phases, "backward", &Phase::name);
      ASSERT_NE(planned, plan.phases.end());
      for (int k = 1; k < kNumMemoryKinds; ++k) {
        const auto kind = static_cast<MemoryKind>(k);
        EXPECT_EQ(planned->at_peak[kind], measured.at_peak[kind]) << name_of(kind);
      }
      EXPECT_GT(planned->at_peak[MemoryKind::kActivations], 0);
    }
  }
}

// Slots that stay and that updates write: two bytes a weight, and no more in later steps.
TEST(Plan, OfCopiesThatStayEqualsWhatARunTakes) {
  ASSERT_TRUE(install_cpu_allocator(/*even_in_sanitized_builds=*/true));
  const shard::ScheduleOptions options{.resident = true};
  const Phase measured =
      measured_backward(options, /*frozen=*/false, "copies that stay", at::kBFloat16);
  Imagined imagined;
  imagined.account().begin_phase("load");
  Built built(at::kMeta, options, /*freeze_first_layers=*/false, {}, /*freeze_embedding=*/false,
              at::kBFloat16);
  const Plan plan = walk(imagined.account(), *built.store, *built.executor, *built.optimizer,
                         {.documents = kDocuments});
  const auto planned = std::ranges::find(plan.phases, "backward", &Phase::name);
  ASSERT_NE(planned, plan.phases.end());
  int64_t numel = 0;
  for (const shard::Unit& unit : built.store->partition().units) numel += unit.segments[0].numel;
  EXPECT_EQ(planned->at_peak[MemoryKind::kSlots], 2 * numel);
  for (const MemoryKind kind : {MemoryKind::kParameters, MemoryKind::kGradients,
                                MemoryKind::kOptimizer, MemoryKind::kSlots}) {
    EXPECT_EQ(planned->at_peak[kind], measured.at_peak[kind]) << name_of(kind);
  }
}

Plan plan_of(int world, int shard_size, int64_t accumulation) {
  Imagined imagined;
  comm::Mesh mesh = comm::make_fake_mesh(world, shard_size);
  const auto model = models::create_model(parse_json(kConfig, "config"), {});
  shard::UnitStore store(*model, mesh, {.device = at::kMeta});
  const shard::ChainShape shape = shard::shape_of(*model, store.partition());
  shard::Executor executor(*model, store, shard::build_schedules(shape, {}));
  optim::AdamW optimizer(store, {});
  return walk(imagined.account(), store, executor, optimizer,
              {.documents = kDocuments, .accumulation = accumulation});
}

constexpr int64_t kInputBytes = 480 * 128 * 4;

TEST(Plan, OfInputsInFilesEqualsWhatARunTakes) {
  ASSERT_TRUE(install_cpu_allocator(/*even_in_sanitized_builds=*/true));
  shard::ScheduleOptions options;
  options.offload_activations = true;
  const Phase measured = measured_backward(options, /*frozen=*/false, "inputs in files");
  Imagined imagined;
  imagined.account().keep_elsewhere({MemoryKind::kKeptInputs});
  Built built(at::kMeta, options, /*freeze_first_layers=*/false, in_files({}));
  const Plan plan = walk(imagined.account(), *built.store, *built.executor, *built.optimizer,
                         {.documents = kDocuments});
  const auto planned = std::ranges::find(plan.phases, "backward", &Phase::name);
  ASSERT_NE(planned, plan.phases.end());
  for (int k = 1; k < kNumMemoryKinds; ++k) {
    const auto kind = static_cast<MemoryKind>(k);
    EXPECT_EQ(planned->at_peak[kind], measured.at_peak[kind]) << name_of(kind);
  }
  // Of three layers the first reads what the embedding keeps, the last is not recomputed.
  EXPECT_EQ(plan.elsewhere[MemoryKind::kKeptInputs], kInputBytes);
}

TEST(Plan, BesideAGpuInputsLeaveItsMemory) {
  const PlannedDeviceScope stands_for(at::kCUDA);
  const auto planned = [](bool offloads) {
    Imagined imagined;
    imagined.account().keep_elsewhere({MemoryKind::kKeptInputs});
    shard::ScheduleOptions options;
    options.offload_activations = offloads;
    Built built(at::kMeta, options, /*freeze_first_layers=*/false,
                {.place = shard::ActivationHomeOptions::Place::kHost}, /*freeze_embedding=*/true);
    return walk(imagined.account(), *built.store, *built.executor, *built.optimizer,
                {.documents = kDocuments});
  };
  const Plan kept = planned(false), moved = planned(true);
  EXPECT_EQ(kept.elsewhere[MemoryKind::kKeptInputs], 0);
  EXPECT_EQ(moved.elsewhere[MemoryKind::kKeptInputs], 2 * kInputBytes);
  const auto at_loss = [](const Plan& plan) {
    return std::ranges::find_if(
               plan.schedule,
               [](const StepMemory& step) { return step.step.action == shard::Action::kLoss; })
        ->peak_bytes;
  };
  // The last one sent is let go of when the first is fetched.
  EXPECT_EQ(at_loss(kept) - at_loss(moved), kInputBytes);
}

// The oracle is dense::biased_attention_backward(), which sums them up chunk by chunk of the
// scores.
TEST(Plan, BesideAGpuGradientsOfPositionsStandBesideScores) {
  constexpr int64_t kTokens = 512, kHeads = 4, kChannels = 16, kMorePlaces = 1024;
  const PlannedDeviceScope stands_for(at::kCUDA);
  const std::vector<int64_t> offsets{0, kTokens};
  const auto peak = [&](int64_t places) {
    Imagined imagined;
    const auto options = at::TensorOptions(at::kMeta).dtype(at::kFloat);
    const at::Tensor q = at::empty({kTokens, kHeads, kChannels}, options);
    const at::Tensor table = at::empty({places, kHeads, kChannels}, options);
    const ops::BiasedAttentionOptions o{.offsets = offsets,
                                        .key_offsets = offsets,
                                        .scale = 0.1,
                                        .key_positions = table,
                                        .query_positions = table};
    const ops::AttentionResult result = ops::biased_attention(q, q, q, {}, o);
    const int64_t given = imagined.account().bytes_in_use();
    imagined.account().take_high_water();
    ops::biased_attention_backward(result.out, q, q, q, {}, result, o, /*wants_bias=*/false);
    return imagined.account().take_high_water() - given;
  };
  constexpr int64_t kLeast = 2 * kTokens - 1;
  EXPECT_EQ(peak(kLeast + kMorePlaces) - peak(kLeast), 2 * kMorePlaces * kHeads * kChannels * 4);
}

// The oracle is what cuda::attention() makes contiguous and repeats before libtorch's kernel.
TEST(Plan, BesideAGpuAttentionInFp32CopiesHeadsThatDoNotLieAlone) {
  constexpr int64_t kTokens = 4800, kHeads = 4, kChannels = 32;
  constexpr int64_t kCopyBytes = kTokens * kHeads * kChannels * 4;
  const PlannedDeviceScope stands_for(at::kCUDA);
  const std::vector<int64_t> offsets{0, 2000, kTokens};
  // The peaks of a forward and of a backward pass, beside what is given.
  const auto peaks = [&](int64_t kv_heads, bool are_slices, at::ScalarType type) {
    Imagined imagined;
    const auto options = at::TensorOptions(at::kMeta).dtype(type);
    const auto heads = [&](int64_t count) {
      const at::Tensor x = at::empty({kTokens, are_slices ? 2 * count : count, kChannels}, options);
      return x.narrow(1, 0, count);
    };
    const at::Tensor q = heads(kHeads), k = heads(kv_heads), v = heads(kv_heads);
    const int64_t given = imagined.account().bytes_in_use();
    imagined.account().take_high_water();
    const ops::AttentionResult result = ops::attention(q, k, v, {offsets, /*scale=*/0.1});
    const int64_t forward = imagined.account().take_high_water() - given;
    ops::attention_backward(result.out, q, k, v, result, {offsets, /*scale=*/0.1});
    return std::pair(forward, imagined.account().take_high_water() - given);
  };
  const auto [forward, backward] = peaks(kHeads, /*are_slices=*/false, at::kFloat);
  EXPECT_EQ(forward, kCopyBytes + kHeads * kTokens * 4);  // the result
  const auto sliced = peaks(kHeads, /*are_slices=*/true, at::kFloat);
  EXPECT_EQ(sliced.first - forward, 3 * kCopyBytes);
  EXPECT_EQ(sliced.second - backward, 3 * kCopyBytes);
  // Keys and values are repeated whether they are slices or not.
  const auto grouped = peaks(/*kv_heads=*/2, /*are_slices=*/false, at::kFloat);
  EXPECT_EQ(grouped.first - forward, 2 * kCopyBytes);
  const auto both = peaks(/*kv_heads=*/2, /*are_slices=*/true, at::kFloat);
  EXPECT_EQ(both.first - grouped.first, kCopyBytes);
  EXPECT_EQ(both.second - grouped.second, kCopyBytes);
  // FlashAttention reads slices.
  EXPECT_EQ(peaks(kHeads, /*are_slices=*/true, at::kBFloat16),
            peaks(kHeads, /*are_slices=*/false, at::kBFloat16));
}

// The oracle is the account of the allocator while they run.
TEST(Plan, KnowsWhatProductsOfMklTakeBesideTheirResults) {
  ASSERT_TRUE(install_cpu_allocator(/*even_in_sanitized_builds=*/true));
  const ops::CpuProducts before = ops::cpu_products();
  ops::choose_cpu_products(ops::CpuProducts::kMkl);
  constexpr int64_t kTokens = 128, kIn = 2048, kOut = 1536, kRank = 16;
  const auto most_beside = [&](Account& account, at::Device device) {
    const auto zeros = [&](int64_t rows, int64_t columns) {
      return at::zeros({rows, columns}, at::device(device));
    };
    const at::Tensor x = zeros(kTokens, kIn), y = zeros(kTokens, kOut);
    const at::Tensor hidden = zeros(kTokens, kRank), gradient = zeros(kOut, kRank);
    ops::quant::QuantizedMatrix weight{{}, kOut, kIn, {}};
    weight.bytes = at::zeros({weight.layout().total}, at::TensorOptions(device).dtype(at::kByte));
    std::vector<int64_t> most;
    const auto note = [&](const auto& multiply) {
      account.take_high_water();
      const int64_t given = account.bytes_in_use();
      multiply();
      most.push_back(account.take_high_water() - given);
    };
    // A narrow gradient is made as its transpose.
    note([&] { ops::matmul_into(gradient, y, hidden, {.a = true}, /*beta=*/1); });
    note([&] { ops::matmul_into(gradient.narrow(0, 0, kRank), hidden, hidden, {.a = true}, 0); });
    note([&] {
      ops::quant::matmul_into(y, x, weight, /*transposed=*/true, /*beta=*/0, at::kFloat);
    });
    note([&] {
      ops::quant::matmul_into(x, y, weight, /*transposed=*/false, /*beta=*/0, at::kFloat);
    });
    return most;
  };
  const std::vector<int64_t> measured = most_beside(*cpu_account(), at::kCPU);
  Imagined imagined;
  EXPECT_EQ(most_beside(imagined.account(), at::kMeta), measured);
  const int64_t block = (4 << 20) / (4 * kIn) * 4 * kIn;
  EXPECT_EQ(measured, (std::vector<int64_t>{4 * kOut * kRank, 0, block, block}));
  ops::choose_cpu_products(before);
}

TEST(Plan, WireBytesGrowWithMicroSteps) {
  constexpr int64_t kNorm = 8 * 2 * 3 / 4;  // one double over four ranks
  const int64_t one = plan_of(4, 4, 1).sent_per_step.total() - kNorm;
  EXPECT_GT(one, 0);
  for (int64_t accumulation : {2, 3, 7}) {
    EXPECT_EQ(plan_of(4, 4, accumulation).sent_per_step.total(), accumulation * one + kNorm);
  }
  EXPECT_EQ(plan_of(1, 1, 2).sent_per_step.total(), 0);
}

TEST(Plan, TheTracedScheduleIsTheExecutors) {
  const Plan plan = plan_of(2, 2, 2);
  ASSERT_FALSE(plan.schedule.empty());
  int losses = 0;
  int64_t largest = 0;
  for (const StepMemory& step : plan.schedule) {
    losses += step.step.action == shard::Action::kLoss;
    largest = std::max(largest, step.peak_bytes);
  }
  EXPECT_EQ(losses, 1);
  EXPECT_EQ(largest, plan.peak.peak_bytes);
  EXPECT_NE(schedule_text(plan.schedule).find("backward 1 (recompute)"), std::string::npos);
}

TEST(Plan, NothingIsLeftWhenTheWalkEnds) {
  Imagined imagined;
  { Built built(at::kMeta, {}, false); }
  EXPECT_EQ(imagined.account().bytes_in_use(), 0);
}

TEST(CpuAllocator, TensorsLargeAndSmallKeepTheirValues) {
  ASSERT_TRUE(install_cpu_allocator(/*even_in_sanitized_builds=*/true));
  const int64_t before = cpu_account()->bytes_in_use();
  const at::Tensor large = at::arange(100'000, at::kFloat), small = at::arange(10, at::kFloat);
  EXPECT_EQ(cpu_account()->bytes_in_use(), before + 400'000);
  trim_cpu_memory();
  EXPECT_EQ(large[99'999].item<float>(), 99'999);
  EXPECT_TRUE(at::equal(large, at::arange(100'000, at::kLong).to(at::kFloat)));
  EXPECT_EQ(small[9].item<float>(), 9);
}

}  // namespace
}  // namespace strata::memory
