// The closed sets of values that settings have, each with its spelling in files and flags. Owns:
// which values there are. Never: what they do.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

namespace strata::config {

template <typename E>
struct Spelled {
  E value;
  std::string_view name;  // as the peer writes it
};

// An enum with a function spellings() beside it, in the order of help and messages.
template <typename E>
concept Choice = std::is_enum_v<E> && requires(E value) {
  spellings(value);
};

template <Choice E>
constexpr std::string_view name_of(E value) {
  for (const Spelled<E>& known : spellings(value)) {
    if (known.value == value) return known.name;
  }
  return {};  // no enumerator
}

// Nothing where no value is spelled so.
template <Choice E>
constexpr std::optional<E> value_named(std::string_view name) {
  for (const Spelled<E>& known : spellings(E{})) {
    if (known.name == name) return known.value;
  }
  return std::nullopt;
}

// When something happens. kBest is of saves alone: after an evaluation better than all before. kEnd
// is of evaluations alone: after the last step.
enum class Interval : uint8_t { kSteps, kEpoch, kBest, kEnd, kNo };
constexpr auto spellings(Interval) {
  using enum Interval;
  return std::to_array<Spelled<Interval>>(
      {{kSteps, "steps"}, {kEpoch, "epoch"}, {kBest, "best"}, {kEnd, "end"}, {kNo, "no"}});
}

// What is done about a batch whose loss or gradient is no number, or a spike.
enum class OnNan : uint8_t { kStop, kRollback };
constexpr auto spellings(OnNan) {
  using enum OnNan;
  return std::to_array<Spelled<OnNan>>({{kStop, "stop"}, {kRollback, "rollback"}});
}

enum class OnBadRow : uint8_t { kError, kSkip };
constexpr auto spellings(OnBadRow) {
  using enum OnBadRow;
  return std::to_array<Spelled<OnBadRow>>({{kError, "error"}, {kSkip, "skip"}});
}

// The order of rows.
enum class Sampling : uint8_t { kRandom, kSequential, kGroupByLength };
constexpr auto spellings(Sampling) {
  using enum Sampling;
  return std::to_array<Spelled<Sampling>>(
      {{kRandom, "random"}, {kSequential, "sequential"}, {kGroupByLength, "group_by_length"}});
}

// A switch that the program may decide.
enum class AutoSwitch : uint8_t { kAuto, kTrue, kFalse };
constexpr auto spellings(AutoSwitch) {
  using enum AutoSwitch;
  return std::to_array<Spelled<AutoSwitch>>({{kAuto, "auto"}, {kTrue, "true"}, {kFalse, "false"}});
}

enum class ShardingStrategy : uint8_t {
  kFullShard,  // ZeRO-3
  kShardGradOp,
  kNoShard,
  kHybridShard,
  kHybridShardZero2,
  kZero1,
  kZero2,
};
constexpr auto spellings(ShardingStrategy) {
  using enum ShardingStrategy;
  return std::to_array<Spelled<ShardingStrategy>>({{kFullShard, "FULL_SHARD"},
                                                   {kShardGradOp, "SHARD_GRAD_OP"},
                                                   {kNoShard, "NO_SHARD"},
                                                   {kHybridShard, "HYBRID_SHARD"},
                                                   {kHybridShardZero2, "HYBRID_SHARD_ZERO2"},
                                                   {kZero1, "ZERO1"},
                                                   {kZero2, "ZERO2"}});
}

// Whether a machine keeps its shards to itself, and machines copies of each other's.
constexpr bool is_hybrid(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kHybridShard ||
         strategy == ShardingStrategy::kHybridShardZero2;
}

enum class BackwardPrefetch : uint8_t { kPre, kPost, kNone };
constexpr auto spellings(BackwardPrefetch) {
  using enum BackwardPrefetch;
  return std::to_array<Spelled<BackwardPrefetch>>(
      {{kPre, "BACKWARD_PRE"}, {kPost, "BACKWARD_POST"}, {kNone, "NO_PREFETCH"}});
}

// What is gathered at a time.
enum class WrapPolicy : uint8_t { kTransformer, kSize, kNone };
constexpr auto spellings(WrapPolicy) {
  using enum WrapPolicy;
  return std::to_array<Spelled<WrapPolicy>>(
      {{kTransformer, "TRANSFORMER_BASED_WRAP"}, {kSize, "SIZE_BASED_WRAP"}, {kNone, "NO_WRAP"}});
}

// What gradient checkpointing computes again of a layer: everything, all but attention, what is
// cheap, nothing, or as little as memory allows.
enum class Checkpointing : uint8_t { kFull, kAttention, kSelective, kNone, kAuto };
constexpr auto spellings(Checkpointing) {
  using enum Checkpointing;
  return std::to_array<Spelled<Checkpointing>>({{kFull, "full"},
                                                {kAttention, "attention"},
                                                {kSelective, "selective"},
                                                {kNone, "none"},
                                                {kAuto, "auto"}});
}

// Where inputs of recomputed layers rest.
enum class ActivationOffloading : uint8_t { kFalse, kTrue, kDisk };
constexpr auto spellings(ActivationOffloading) {
  using enum ActivationOffloading;
  return std::to_array<Spelled<ActivationOffloading>>(
      {{kFalse, "false"}, {kTrue, "true"}, {kDisk, "disk"}});
}

// Where parameters or the optimizer's state rest: kNvme are files.
enum class OffloadDevice : uint8_t { kNone, kCpu, kNvme };
constexpr auto spellings(OffloadDevice) {
  using enum OffloadDevice;
  return std::to_array<Spelled<OffloadDevice>>({{kNone, "none"}, {kCpu, "cpu"}, {kNvme, "nvme"}});
}

enum class StateDictType : uint8_t { kSharded, kFull, kLocal };
constexpr auto spellings(StateDictType) {
  using enum StateDictType;
  return std::to_array<Spelled<StateDictType>>(
      {{kSharded, "SHARDED_STATE_DICT"}, {kFull, "FULL_STATE_DICT"}, {kLocal, "LOCAL_STATE_DICT"}});
}

enum class RendezvousBackend : uint8_t { kStatic, kC10d };
constexpr auto spellings(RendezvousBackend) {
  using enum RendezvousBackend;
  return std::to_array<Spelled<RendezvousBackend>>({{kStatic, "static"}, {kC10d, "c10d"}});
}

enum class ContainerRuntime : uint8_t { kAuto, kPyxis, kApptainer };
constexpr auto spellings(ContainerRuntime) {
  using enum ContainerRuntime;
  return std::to_array<Spelled<ContainerRuntime>>(
      {{kAuto, "auto"}, {kPyxis, "pyxis"}, {kApptainer, "apptainer"}});
}

enum class PlanDevice : uint8_t { kAuto, kCpu, kCuda };
constexpr auto spellings(PlanDevice) {
  using enum PlanDevice;
  return std::to_array<Spelled<PlanDevice>>({{kAuto, "auto"}, {kCpu, "cpu"}, {kCuda, "cuda"}});
}

enum class Split : uint8_t { kTrain, kTest };
constexpr auto spellings(Split) {
  using enum Split;
  return std::to_array<Spelled<Split>>({{kTrain, "train"}, {kTest, "test"}});
}

enum class PeftType : uint8_t { kLora, kIa3, kVera, kPromptTuning, kPrefixTuning };
constexpr auto spellings(PeftType) {
  using enum PeftType;
  return std::to_array<Spelled<PeftType>>({{kLora, "LORA"},
                                           {kIa3, "IA3"},
                                           {kVera, "VERA"},
                                           {kPromptTuning, "PROMPT_TUNING"},
                                           {kPrefixTuning, "PREFIX_TUNING"}});
}

// Whether it trains rows before a prompt, not layers.
constexpr bool is_tuning_of_tokens(PeftType type) {
  return type == PeftType::kPromptTuning || type == PeftType::kPrefixTuning;
}

// What the lines of standard input are.
enum class LineKind : uint8_t { kAuto, kText, kJson };
constexpr auto spellings(LineKind) {
  using enum LineKind;
  return std::to_array<Spelled<LineKind>>({{kAuto, "auto"}, {kText, "text"}, {kJson, "json"}});
}

}  // namespace strata::config

// Messages show the spelling.
template <strata::config::Choice E>
struct fmt::formatter<E> : fmt::formatter<std::string_view> {
  auto format(E value, auto& context) const {
    return fmt::formatter<std::string_view>::format(strata::config::name_of(value), context);
  }
};
