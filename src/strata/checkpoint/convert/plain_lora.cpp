#include "strata/checkpoint/convert/plain_lora.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

#include <fmt/ranges.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include "strata/adapters/adapter_options.h"
#include "strata/adapters/base_directions.h"
#include "strata/adapters/lora_init.h"
#include "strata/adapters/target_layers.h"
#include "strata/base/error.h"
#include "strata/checkpoint/base_mark.h"
#include "strata/checkpoint/convert/adapter_parts.h"
#include "strata/checkpoint/convert/param_groups.h"
#include "strata/checkpoint/convert/saved_values.h"
#include "strata/checkpoint/element_type.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/base_fingerprint.h"
#include "strata/models/gpt2/config.h"

namespace strata::checkpoint {
namespace {

constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";
constexpr std::string_view kColumns = ".lora_embedding_A", kRows = ".lora_embedding_B";

// Which dim of a tensor of the adapter counts its ranks; nothing: none does.
std::optional<size_t> rank_dim(std::string_view name) {
  if (name.ends_with(kA) || name.ends_with(kColumns)) return 0;
  if (name.ends_with(kB) || name.ends_with(kRows)) return 1;
  return {};
}

// The same adapter_config.json for twice the rank: alpha grows with it, so that the scale stays.
Json plain_config(Json config) {
  const bool use_rslora = config.value("use_rslora", false);
  const double growth = use_rslora ? std::sqrt(2.0) : 2.0;
  const auto grow = [&](Json& value) {
    const double grown = value.get<double>() * growth;
    value = grown == std::floor(grown) ? Json(static_cast<int64_t>(grown)) : Json(grown);
  };
  config["init_lora_weights"] = true;
  config["r"] = 2 * config.value("r", int64_t{8});
  if (!config.contains("lora_alpha")) config["lora_alpha"] = 8;
  grow(config["lora_alpha"]);
  if (config.contains("rank_pattern")) {
    for (auto& [module, rank] : config["rank_pattern"].items()) rank = 2 * rank.get<int64_t>();
  }
  if (config.contains("alpha_pattern")) {
    for (auto& [module, alpha] : config["alpha_pattern"].items()) grow(alpha);
  }
  return config;
}

void check_start(const adapters::LoraOptions& settings, const SavedState& adapter,
                 const SavedState& first) {
  const std::string& init = settings.init;
  if (settings.method != adapters::Method::kLora ||
      (!init.starts_with("pissa") && init != "olora")) {
    throw ConfigError(
        "{}: found init_lora_weights {}, expected pissa, pissa_niter_N or olora, which change the "
        "base; {}",
        adapter.path().string(), init,
        init == "loftq" ? "what LoftQ rounds off a base is no LoRA: merge the adapter in its place"
                        : "the adapter belongs to the unchanged base as it is");
  }
  if (const std::string codes = hf::parse_base_mark(adapter.facts().base_fingerprint).codes;
      !codes.empty()) {
    throw ConfigError(
        "{}: found first values that were taken off the codes of its base ({}), which were rounded "
        "again, expected those of plain weights; write the base so with strata convert BASE CODES "
        "and merge the adapter: strata merge-adapter ADAPTER OUT --base_model CODES --dequantize",
        adapter.path().string(), codes);
  }
  if (init.starts_with("pissa_niter_") && !first.is_adapter()) {
    throw ConfigError(
        "{}: found init_lora_weights {}, whose random directions cannot be drawn again, expected "
        "the adapter as it was before its first step; name it with "
        "--path_initial_model_for_weight_conversion",
        adapter.path().string(), init);
  }
}

std::optional<size_t> place_of(const SavedState& state, const std::string& name) {
  const auto& tensors = state.tensors();
  const auto found = std::ranges::find_if(tensors, [&](const SavedTensor& tensor) {
    return tensor.is_parameter() && tensor.weight == name;
  });
  if (found == tensors.end()) return {};
  return static_cast<size_t>(found - tensors.begin());
}

const std::vector<int64_t>& shape_of(const SavedState& state, const std::string& name) {
  if (const auto place = place_of(state, name)) return state.tensors()[*place].shape;
  throw ConfigError(
      "{}: found no \"{}\", expected both halves of every branch; name another adapter",
      state.path().string(), name);
}

// A tied output layer has the embedding's name there.
std::vector<std::string> names_in_base(const std::string& path) {
  if (path != "lm_head") return {path + ".weight"};
  return {"lm_head.weight",
          "model.embed_tokens.weight",
          "shared.weight",
          "transformer.wte.weight",
          "transformer.word_embeddings.weight",
          "gpt_neox.embed_in.weight",
          "model.decoder.embed_tokens.weight"};
}

}  // namespace

PlainLoraState::PlainLoraState(SavedState& adapter, SavedState& first)
    : SavedState(adapter.path()), adapter_(adapter), first_(first) {
  facts_ = adapter.facts();
  const std::string subject = path_.string();
  const Json config = parse_json(adapter_config_text(adapter), subject);
  settings_ = adapters::lora_options_of(hf::parse_adapter_config(config, subject));
  check_start(settings_, adapter, first);
  require_base(subject, facts_.base_fingerprint, first.path().string(),
               first.facts().base_fingerprint, adapters::changes_base(settings_));
  facts_.adapter_config = plain_config(config);
  for (const SavedTensor& tensor : adapter.tensors()) {
    if (!tensor.is_parameter()) break;  // weights stand first
    tensors_.push_back(tensor);
    if (const auto dim = rank_dim(tensor.weight)) tensors_.back().shape.at(*dim) *= 2;
  }
}

void PlainLoraState::read(size_t index, std::span<std::byte> out) {
  const std::string& name = adapter_.tensors()[index].weight;
  const auto dim = rank_dim(name);
  if (!dim) return adapter_.read(index, out);
  const at::Tensor own = read_tensor(adapter_, index);
  at::Tensor first = at::zeros_like(own);  // an embedding's branch takes nothing off the base
  if (name.ends_with(kA) || name.ends_with(kB)) {
    const FirstValues& values = first_values(name.substr(0, name.size() - kA.size()));
    first = name.ends_with(kA) ? values.a : values.b.neg();
  }
  const at::Tensor both =
      at::cat({own, first.to(own.scalar_type())}, static_cast<int64_t>(*dim)).contiguous();
  std::memcpy(out.data(), both.const_data_ptr(), both.nbytes());
}

const PlainLoraState::FirstValues& PlainLoraState::first_values(const std::string& module) {
  if (module == module_) return values_;
  const std::string a = module + std::string(kA), b = module + std::string(kB);
  const std::vector<int64_t>& shape_a = shape_of(adapter_, a);
  const std::vector<int64_t>& shape_b = shape_of(adapter_, b);
  if (shape_a.size() != 2 || shape_b.size() != 2 || shape_a[0] != shape_b[1]) {
    throw FormatError(
        "{}: found \"{}\" with shape [{}] and \"{}\" with [{}], expected [r, in] and [out, r]; the "
        "adapter is damaged",
        path_.string(), a, fmt::join(shape_a, ", "), b, fmt::join(shape_b, ", "));
  }
  if (first_.is_adapter()) {
    values_ = {saved_value(a, shape_a), saved_value(b, shape_b)};
  } else {
    values_ = taken_off_base(module, {shape_b[0], shape_a[1]}, shape_a[0]);
  }
  module_ = module;
  return values_;
}

PlainLoraState::FirstValues PlainLoraState::taken_off_base(const std::string& module,
                                                           const std::vector<int64_t>& shape,
                                                           int64_t rank) {
  const std::string path = module.substr(std::string_view(hf::kAdapterKeyPrefix).size());
  for (const std::string& name : names_in_base(path)) {
    const std::optional<size_t> place = place_of(first_, name);
    if (!place) continue;
    if (first_.tensors()[*place].shape != shape) {
      fail(fmt::format("\"{}\" with shape [{}] in {}", name,
                       fmt::join(first_.tensors()[*place].shape, ", "), first_.path().string()),
           fmt::format("[{}]", fmt::join(shape, ", ")), "name the base that it was trained on");
    }
    if (models::is_conv1d_weight(config_of(first_), name)) {
      fail(fmt::format("\"{}\" as [in, out] in {}", name, first_.path().string()), "[out, in]",
           "name the adapter as it was before the first step of this one");
    }
    const double scale = adapters::scaling_of(settings_, path, rank);
    const adapters::BaseDirections taken = adapters::base_directions(
        read_tensor(first_, *place).to(at::kFloat), rank, scale, settings_);
    return {taken.a, taken.b};
  }
  fail(fmt::format("no weight of \"{}\" in {}", path, first_.path().string()), "one",
       "name the base that it was trained on");
}

at::Tensor PlainLoraState::saved_value(const std::string& name, const std::vector<int64_t>& shape) {
  if (shape_of(first_, name) != shape) {
    fail(fmt::format("\"{}\" with shape [{}] in {}", name, fmt::join(shape_of(first_, name), ", "),
                     first_.path().string()),
         fmt::format("[{}]", fmt::join(shape, ", ")),
         "name the adapter as it was before the first step of this one");
  }
  return read_tensor(first_, *place_of(first_, name)).to(at::kFloat);
}

void PlainLoraState::fail(const std::string& found, const std::string& expected,
                          const std::string& advice) const {
  throw ConfigError("{}: found {}, expected {}; {}", path_.string(), found, expected, advice);
}

}  // namespace strata::checkpoint
